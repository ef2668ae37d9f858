package io.tailrace.compat;

import static io.tailrace.compat.Events.check;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.segment.impl.ServerTimeoutException;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A stream that scales by its events per second, while a writer, a writer of transactions and two readers are at work.
 * The server scales in seconds instead of minutes.
 */
final class AutoScaling {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final String STREAM = "stream";
    private static final int TARGET_PER_S = 10;
    private static final int KEYS = 12;
    private static final int LENGTH = 100;
    private static final int SPLIT = 4;
    private static final long PAUSE_MS = 100;
    private static final long TRANSACTION_PAUSE_MS = 1000; // the client needs much memory for each
    private static final long LIMIT_MS = 300_000;

    private final Server server;
    private final String scope = "java-auto-scaling-" + System.currentTimeMillis();
    private final ExecutorService workers = Executors.newFixedThreadPool(4);
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicBoolean allWritten = new AtomicBoolean();
    private final Events plain = new Events();
    private final Events committed = new Events();

    AutoScaling(Server server) {
        this.server = server;
    }

    void run() throws Exception {
        server.streams.createScope(scope);
        ScalingPolicy policy = ScalingPolicy.byEventRate(TARGET_PER_S, 2, 1);
        server.streams.createStream(scope, STREAM, StreamConfiguration.builder().scalingPolicy(policy).build());
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            check(groups.createReaderGroup("group", Server.group(scope, STREAM).build()), "the group existed already");
            Future<Integer> writes = workers.submit(() -> write(clients));
            Future<Integer> transactions = workers.submit(() -> commit(clients));
            List<Future<?>> reads = new ArrayList<>();
            for (String name : List.of("one", "two")) {
                reads.add(workers.submit(() -> read(clients, name)));
            }
            await("the stream is split", () -> server.segments(scope, STREAM).size() >= SPLIT);
            stopped.set(true);
            int turns = writes.get();
            int ended = transactions.get();
            await("all is read", () -> {
                for (Future<?> each : reads) {
                    if (each.isDone()) {
                        each.get(); // throws why it ended
                    }
                }
                return plain.count() >= turns * KEYS && committed.count() >= ended * KEYS;
            });
            await("the stream has its minimum again", () -> server.segments(scope, STREAM).size() == 1);
            allWritten.set(true);
            for (Future<?> each : reads) {
                each.get();
            }
            plain.checkExactlyOnce(keys("plain"), 0, turns);
            committed.checkExactlyOnce(keys("committed"), 0, ended);
            workers.shutdown();
            System.out.println(turns + " turns, " + ended + " transactions, segment " + server.segments(scope, STREAM));
        }
    }

    private static List<String> keys(String prefix) {
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < KEYS; i++) {
            keys.add(prefix + "-" + i);
        }
        return keys;
    }

    /** Returns how many events each key has. */
    private int write(EventStreamClientFactory clients) throws Exception {
        int turn = 0;
        try (EventStreamWriter<String> writer =
                clients.createEventWriter(STREAM, TEXT, EventWriterConfig.builder().build())) {
            for (; !stopped.get(); turn++) {
                for (String key : keys("plain")) {
                    writer.writeEvent(key, Events.text(key, turn, LENGTH));
                }
                writer.flush();
                Thread.sleep(PAUSE_MS);
            }
        }
        return turn;
    }

    /** Returns how many transactions were committed; each has an event of every key. */
    private int commit(EventStreamClientFactory clients) throws Exception {
        int turn = 0;
        EventWriterConfig config = EventWriterConfig.builder().build();
        try (TransactionalEventStreamWriter<String> writer =
                clients.createTransactionalEventWriter("writer", STREAM, TEXT, config)) {
            for (; !stopped.get(); turn++) {
                Transaction<String> transaction = writer.beginTxn();
                for (String key : keys("committed")) {
                    transaction.writeEvent(key, Events.text(key, turn, LENGTH));
                }
                transaction.commit();
                await("a transaction is committed", () -> transaction.checkStatus() == Transaction.Status.COMMITTED);
                Thread.sleep(TRANSACTION_PAUSE_MS);
            }
        }
        return turn;
    }

    private Void read(EventStreamClientFactory clients, String name) {
        try (EventStreamReader<String> reader =
                clients.createReader(name, "group", TEXT, ReaderConfig.builder().build())) {
            while (true) {
                String event;
                try {
                    event = reader.readNextEvent(1000).getEvent();
                } catch (ServerTimeoutException late) {
                    // The client waits a few seconds for the group's state, and leaves it to the application to ask again.
                    continue;
                }
                if (event != null) {
                    (event.startsWith("plain") ? plain : committed).add(event);
                } else if (allWritten.get()) {
                    return null;
                }
            }
        }
    }

    private static void await(String what, Callable<Boolean> condition) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.call()) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
            TimeUnit.MILLISECONDS.sleep(50);
        }
    }
}
