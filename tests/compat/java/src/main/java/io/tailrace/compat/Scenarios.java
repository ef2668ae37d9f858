package io.tailrace.compat;

import static io.tailrace.compat.Events.check;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Checks of the published Java client, each in a scope of its own. */
final class Scenarios {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final String STREAM = "stream";
    private static final long READ_WAIT_MS = 1000;
    private static final long LIMIT_MS = 90_000;

    private final Server server;
    private final String scope;

    private Scenarios(Server server, String name) {
        this.server = server;
        this.scope = "java-" + name + "-" + System.currentTimeMillis();
    }

    static void run(Server server, String name) throws Exception {
        Scenarios one = new Scenarios(server, name);
        switch (name) {
            case "events" -> one.events();
            case "two-readers" -> one.twoReaders();
            case "transaction" -> one.transaction();
            case "scale" -> one.scale();
            case "checkpoint" -> one.checkpoint();
            case "truncation" -> one.truncation();
            case "life-of-a-stream" -> one.lifeOfAStream();
            case "retention" -> new Retention(server).run();
            case "auto-scaling" -> new AutoScaling(server).run();
            case "time-windows" -> new TimeWindows(server).run();
            default -> throw new IllegalArgumentException("unknown scenario " + name);
        }
        System.out.println("ok " + name);
    }

    private static List<String> keys(int count) {
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            keys.add("key-" + i);
        }
        return keys;
    }

    private static void write(EventStreamWriter<String> writer, List<String> keys, int first, int last) {
        List<CompletableFuture<Void>> all = new ArrayList<>();
        for (int sequence = first; sequence < last; sequence++) {
            for (String key : keys) {
                all.add(writer.writeEvent(key, Events.text(key, sequence, 100)));
            }
        }
        writer.flush();
        CompletableFuture.allOf(all.toArray(new CompletableFuture<?>[0])).orTimeout(LIMIT_MS, TimeUnit.MILLISECONDS).join();
    }

    private EventStreamWriter<String> writer(EventStreamClientFactory clients) {
        return clients.createEventWriter(STREAM, TEXT, EventWriterConfig.builder().build());
    }

    private ReaderGroup group(ReaderGroupManager groups, String name, ReaderGroupConfig config) {
        check(groups.createReaderGroup(name, config), "the reader group existed already");
        return groups.getReaderGroup(name);
    }

    private EventStreamReader<String> reader(EventStreamClientFactory clients, String group, String name) {
        return clients.createReader(name, group, TEXT, ReaderConfig.builder().build());
    }

    /** Reads until {@code total} events are known to {@code found}; returns how many this reader read. */
    private static int read(EventStreamReader<String> reader, Events found, int total) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        int mine = 0;
        while (found.count() < total) {
            check(System.currentTimeMillis() < end, found.count() + " of " + total + " events in time");
            EventRead<String> next = reader.readNextEvent(READ_WAIT_MS);
            if (next.getEvent() != null) {
                found.add(next.getEvent());
                mine++;
            }
        }
        return mine;
    }

    private static void readNothing(EventStreamReader<String> reader) throws Exception {
        EventRead<String> next = reader.readNextEvent(READ_WAIT_MS);
        check(next.getEvent() == null, "unexpected event " + next.getEvent());
    }

    private void events() throws Exception {
        server.create(scope, STREAM, 4);
        List<String> keys = keys(50);
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            try (EventStreamWriter<String> writer = writer(clients)) {
                write(writer, keys, 0, 200);
                // Large ones too: batches larger than a block, and the largest ordinary event.
                for (int length : new int[] {1 << 10, 1 << 20, 8 << 20}) {
                    writer.writeEvent("large", Events.text("large", length, length)).get(60, TimeUnit.SECONDS);
                }
            }
            group(groups, "group", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> reader = reader(clients, "group", "reader")) {
                int large = 0;
                while (found.count() < 200 * 50 || large < 3) {
                    EventRead<String> next = reader.readNextEvent(10_000);
                    if (next.isCheckpoint()) {
                        continue;
                    }
                    check(next.getEvent() != null, "no event for 10 s, " + found.count() + " so far");
                    if (next.getEvent().startsWith("large")) {
                        check(next.getEvent().length() == Integer.parseInt(next.getEvent().split(":")[1]), "damaged");
                        large++;
                    } else {
                        found.add(next.getEvent());
                    }
                }
                readNothing(reader);
            }
            found.checkExactlyOnce(keys, 0, 200);
        }
    }

    private void twoReaders() throws Exception {
        server.create(scope, STREAM, 4);
        List<String> keys = keys(40);
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<String> writer = writer(clients)) {
            group(groups, "group", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> one = reader(clients, "group", "one");
                    EventStreamReader<String> two = reader(clients, "group", "two")) {
                // Rounds until both have read something: segments move between readers at the group's refresh.
                boolean[] both = new boolean[2];
                int rounds = 0;
                while (!both[0] || !both[1]) {
                    check(rounds < 60, "one of two readers read nothing");
                    write(writer, keys, rounds, rounds + 1);
                    rounds++;
                    int total = rounds * keys.size();
                    Future<Integer> first = server.executor.submit(() -> read(one, found, total));
                    Future<Integer> second = server.executor.submit(() -> read(two, found, total));
                    both[0] |= first.get() > 0;
                    both[1] |= second.get() > 0;
                }
                found.checkExactlyOnce(keys, 0, rounds);
            }
        }
    }

    private void transaction() throws Exception {
        server.create(scope, STREAM, 2);
        List<String> keys = keys(10);
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                TransactionalEventStreamWriter<String> writer = clients.createTransactionalEventWriter(
                        "writer", STREAM, TEXT, EventWriterConfig.builder().transactionTimeoutTime(30_000).build())) {
            group(groups, "group", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> reader = reader(clients, "group", "reader")) {
                Transaction<String> first = writer.beginTxn();
                Transaction<String> second = writer.beginTxn();
                for (String key : keys) {
                    for (int sequence = 0; sequence < 5; sequence++) {
                        first.writeEvent(key, Events.text(key, sequence, 100));
                        second.writeEvent("aborted", Events.text("aborted", sequence, 100));
                    }
                }
                first.flush();
                check(first.checkStatus() == Transaction.Status.OPEN, "status " + first.checkStatus());
                readNothing(reader);
                second.abort();
                first.commit();
                read(reader, found, 50);
                check(status(first, Transaction.Status.COMMITTED), "status " + first.checkStatus());
                check(status(second, Transaction.Status.ABORTED), "status " + second.checkStatus());
                check(writer.getTxn(first.getTxnId()).checkStatus() == Transaction.Status.COMMITTED, "resumed handle");
                refused(second);
                readNothing(reader);
            }
            found.checkExactlyOnce(keys, 0, 5);
        }
    }

    private static void refused(Transaction<String> ended) {
        try {
            ended.commit();
        } catch (TxnFailedException expected) {
            return;
        }
        throw new AssertionError("an aborted transaction could be committed");
    }

    private static boolean status(Transaction<String> transaction, Transaction.Status wanted) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (transaction.checkStatus() != wanted && System.currentTimeMillis() < end) {
            Thread.sleep(50); // the client offers nothing to wait for
        }
        return transaction.checkStatus() == wanted;
    }

    /** 1 to 3 to 2 segments while two readers follow. */
    private void scale() throws Exception {
        server.create(scope, STREAM, 1);
        List<String> keys = keys(30);
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<String> writer = writer(clients)) {
            group(groups, "group", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> one = reader(clients, "group", "one");
                    EventStreamReader<String> two = reader(clients, "group", "two")) {
                int total = 4 * 20 * keys.size();
                Future<Integer> first = server.executor.submit(() -> read(one, found, total));
                Future<Integer> second = server.executor.submit(() -> read(two, found, total));
                write(writer, keys, 0, 20);
                server.scale(scope, STREAM, 3);
                check(server.segments(scope, STREAM).equals(List.of((1L << 32) + 1, (1L << 32) + 2, (1L << 32) + 3)),
                        "segments " + server.segments(scope, STREAM));
                write(writer, keys, 20, 40);
                server.scale(scope, STREAM, 2);
                check(server.segments(scope, STREAM).size() == 2, "segments " + server.segments(scope, STREAM));
                write(writer, keys, 40, 80);
                first.get();
                second.get();
            }
            found.checkExactlyOnce(keys, 0, 80);
        }
    }

    /** A checkpoint while readers read; a group reset to it reads what came after it, once more. */
    private void checkpoint() throws Exception {
        server.create(scope, STREAM, 2);
        List<String> keys = keys(20);
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<String> writer = writer(clients)) {
            // Automatic checkpoints off: only the one asked for.
            ReaderGroup group = group(groups, "group",
                    Server.group(scope, STREAM).disableAutomaticCheckpoints().build());
            write(writer, keys, 0, 10);
            Checkpoint checkpoint;
            try (EventStreamReader<String> reader = reader(clients, "group", "reader")) {
                read(reader, new Events(), 200);
                CompletableFuture<Checkpoint> asked = group.initiateCheckpoint("checkpoint", server.executor);
                boolean seen = false;
                long end = System.currentTimeMillis() + LIMIT_MS;
                while (!asked.isDone()) {
                    check(System.currentTimeMillis() < end, "the checkpoint was not done in time");
                    EventRead<String> next = reader.readNextEvent(READ_WAIT_MS);
                    seen |= next.isCheckpoint() && "checkpoint".equals(next.getCheckpointName());
                }
                check(seen, "the reader saw no checkpoint event");
                checkpoint = asked.get(10, TimeUnit.SECONDS);
                write(writer, keys, 10, 15);
                Events after = new Events();
                read(reader, after, 100);
                after.checkExactlyOnce(keys, 10, 15);
            }
            group.resetReaderGroup(ReaderGroupConfig.builder().startFromCheckpoint(checkpoint)
                    .disableAutomaticCheckpoints().groupRefreshTimeMillis(Server.REFRESH_INTERVAL_MS).build());
            Events again = new Events();
            try (EventStreamReader<String> reader = reader(clients, "group", "reader-again")) {
                read(reader, again, 100);
                readNothing(reader);
            }
            again.checkExactlyOnce(keys, 10, 15);
        }
    }

    /** What is before the cut is gone, for new groups and for those that had not read it yet. */
    private void truncation() throws Exception {
        server.create(scope, STREAM, 2);
        List<String> keys = keys(20);
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<String> writer = writer(clients)) {
            write(writer, keys, 0, 10);
            ReaderGroup late = group(groups, "late", Server.group(scope, STREAM).build());
            check(late.getGroupName().equals("late"), "name of the group");
            StreamCut cut = server.streams.fetchStreamInfo(scope, STREAM).get(60, TimeUnit.SECONDS).getTailStreamCut();
            check(StreamCut.from(cut.asText()).equals(cut), "text form of a stream cut");
            write(writer, keys, 10, 14);
            check(server.streams.truncateStream(scope, STREAM, cut), "truncation refused");
            StreamCut head = server.streams.fetchStreamInfo(scope, STREAM).get(60, TimeUnit.SECONDS).getHeadStreamCut();
            check(head.equals(cut), "head " + head + " after truncation at " + cut);
            group(groups, "new", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> reader = reader(clients, "new", "reader")) {
                read(reader, found, 80);
                readNothing(reader);
            }
            found.checkExactlyOnce(keys, 10, 14);
            Events afterLoss = new Events();
            try (EventStreamReader<String> reader = reader(clients, "late", "late-reader")) {
                int lost = 0;
                while (afterLoss.count() < 80) {
                    try {
                        read(reader, afterLoss, 80);
                    } catch (TruncatedDataException expected) {
                        lost++;
                    }
                }
                check(lost > 0, "no reader reported lost data");
            }
            afterLoss.checkExactlyOnce(keys, 10, 14);
        }
    }

    private void lifeOfAStream() throws Exception {
        check(server.streams.createScope(scope), "createScope");
        check(!server.streams.createScope(scope), "createScope again");
        check(server.streams.checkScopeExists(scope), "checkScopeExists");
        check(server.streams.createStream(scope, STREAM, Server.fixed(2)), "createStream");
        check(!server.streams.createStream(scope, STREAM, Server.fixed(2)), "createStream again");
        check(server.streams.checkStreamExists(scope, STREAM), "checkStreamExists");
        check(server.streams.updateStream(scope, STREAM, Server.fixed(3)), "updateStream");
        check(server.segments(scope, STREAM).size() == 3, "an update of a fixed policy scales");
        List<Stream> listed = new ArrayList<>();
        server.streams.listStreams(scope).forEachRemaining(listed::add);
        check(listed.contains(Stream.of(scope, STREAM)), "streams " + listed);
        Map<String, Boolean> scopes = new ConcurrentHashMap<>();
        server.streams.listScopes().forEachRemaining(name -> scopes.put(name, true));
        check(scopes.containsKey(scope) && scopes.containsKey("_system"), "scopes " + scopes.keySet());
        List<String> keys = keys(5);
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            try (EventStreamWriter<String> writer = writer(clients)) {
                write(writer, keys, 0, 5);
            }
            check(server.streams.sealStream(scope, STREAM), "sealStream");
            group(groups, "group", Server.group(scope, STREAM).build());
            Events found = new Events();
            try (EventStreamReader<String> reader = reader(clients, "group", "reader")) {
                read(reader, found, 25);
            }
            found.checkExactlyOnce(keys, 0, 5);
            groups.deleteReaderGroup("group");
        }
        check(server.streams.deleteStream(scope, STREAM), "deleteStream");
        check(!server.streams.deleteStream(scope, STREAM), "deleteStream again");
        check(server.streams.deleteScope(scope), "deleteScope");
        check(!server.streams.checkScopeExists(scope), "the scope is still there");
    }
}
