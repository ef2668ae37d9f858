package io.tailrace.compat;

import static io.tailrace.compat.Events.check;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Transactions that are open over several scales: {@code rolling URI SCOPE EPOCHS TRANSACTIONS SEED}. In each epoch so
 * many begin; every one writes an event to each key. Then they end in random order, each fifth by an abort, while a
 * writer without transactions goes on. Some of another writer, which is closed before the first scale, end with their
 * leases. Two readers read it all. Prints {@code key NAME: NUMBER NUMBER ...}, the
 * transactions in the order in which the key's events were read, and a last line {@code ok}.
 */
final class RollingTransactions {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final String STREAM = "stream";
    private static final int KEYS = 8;
    private static final int LENGTH = 100;
    private static final int CALLERS = 16;
    private static final long READ_WAIT_MS = 1000;
    private static final long LEASE_MS = 300_000;
    private static final long SHORT_LEASE_MS = 10_000;
    private static final int LEFT = 2;

    private final Server server;
    private final String scope;
    private final int epochs;
    private final int each;
    private final Random random;
    private final long endMs;

    RollingTransactions(Server server, List<String> words) {
        this.server = server;
        this.scope = words.get(0);
        this.epochs = Integer.parseInt(words.get(1));
        this.each = Integer.parseInt(words.get(2));
        this.random = new Random(Long.parseLong(words.get(3)));
        this.endMs = System.currentTimeMillis() + 120_000 + 1000L * epochs * each;
    }

    void run() throws Exception {
        server.create(scope, STREAM, 2);
        Map<String, List<Integer>> order = new LinkedHashMap<>();
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(LEASE_MS).build();
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<String> plain = clients.createEventWriter(STREAM, TEXT, config);
                TransactionalEventStreamWriter<String> writer =
                        clients.createTransactionalEventWriter("writer", STREAM, TEXT, config)) {
            check(groups.createReaderGroup("group", Server.group(scope, STREAM).build()), "the group existed already");
            List<UUID> left = leave(clients);
            List<Transaction<String>> open = new ArrayList<>();
            for (int epoch = 0; epoch < epochs; epoch++) {
                begin(writer, open);
                write(plain, epoch);
                server.scale(scope, STREAM, 2 + (epoch + 1) % 3);
            }
            int committed = end(open, plain);
            for (UUID transaction : left) {
                await(writer.getTxn(transaction), Transaction.Status.ABORTED);
            }
            read(clients, order, committed * KEYS + (epochs + open.size()) * KEYS);
        }
        for (Map.Entry<String, List<Integer>> entry : order.entrySet()) {
            StringBuilder line = new StringBuilder("key ").append(entry.getKey()).append(':');
            entry.getValue().forEach(number -> line.append(' ').append(number));
            System.out.println(line);
        }
        System.out.println("ok");
    }

    /** Begins transactions with events and closes their writer, which stops extending their leases. */
    private static List<UUID> leave(EventStreamClientFactory clients) throws Exception {
        List<UUID> left = new ArrayList<>();
        EventWriterConfig config = EventWriterConfig.builder().transactionTimeoutTime(SHORT_LEASE_MS).build();
        try (TransactionalEventStreamWriter<String> writer =
                clients.createTransactionalEventWriter("leaving", STREAM, TEXT, config)) {
            for (int i = 0; i < LEFT; i++) {
                Transaction<String> transaction = writer.beginTxn();
                for (int key = 0; key < KEYS; key++) {
                    transaction.writeEvent("key" + key, Events.text("left" + key, i, LENGTH));
                }
                transaction.flush();
                left.add(transaction.getTxnId());
            }
        }
        return left;
    }

    private void await(Transaction<String> transaction, Transaction.Status wanted) throws Exception {
        while (transaction.checkStatus() != wanted) {
            check(System.currentTimeMillis() < endMs, "a transaction stays " + transaction.checkStatus());
            Thread.sleep(50); // the client offers nothing to wait for
        }
    }

    private void begin(TransactionalEventStreamWriter<String> writer, List<Transaction<String>> open) throws Exception {
        for (int i = 0; i < each; i++) {
            Transaction<String> transaction = writer.beginTxn();
            for (int key = 0; key < KEYS; key++) {
                transaction.writeEvent("key" + key, Events.text("key" + key, open.size(), LENGTH));
            }
            transaction.flush();
            open.add(transaction);
        }
    }

    private static void write(EventStreamWriter<String> plain, int sequence) {
        for (int key = 0; key < KEYS; key++) {
            plain.writeEvent("key" + key, Events.text("plain" + key, sequence, LENGTH));
        }
        plain.flush();
    }

    /** Ends all in random order; returns how many were committed. */
    private int end(List<Transaction<String>> open, EventStreamWriter<String> plain) throws Exception {
        List<Transaction<String>> mixed = new ArrayList<>(open);
        Collections.shuffle(mixed, random);
        Map<Transaction<String>, Transaction.Status> wanted = new LinkedHashMap<>();
        ExecutorService callers = Executors.newFixedThreadPool(CALLERS);
        List<Future<?>> calls = new ArrayList<>();
        try {
            for (Transaction<String> transaction : mixed) {
                boolean aborts = wanted.size() % 5 == 4;
                wanted.put(transaction, aborts ? Transaction.Status.ABORTED : Transaction.Status.COMMITTED);
                calls.add(callers.submit(() -> {
                    if (aborts) {
                        transaction.abort();
                    } else {
                        transaction.commit();
                    }
                    return null;
                }));
            }
            for (int i = 0; i < calls.size(); i++) {
                write(plain, epochs + i);
                calls.get(i).get();
            }
        } finally {
            callers.shutdownNow();
        }
        int committed = 0;
        for (Map.Entry<Transaction<String>, Transaction.Status> entry : wanted.entrySet()) {
            await(entry.getKey(), entry.getValue());
            committed += entry.getValue() == Transaction.Status.COMMITTED ? 1 : 0;
        }
        return committed;
    }

    private void read(EventStreamClientFactory clients, Map<String, List<Integer>> order, int total) throws Exception {
        try (EventStreamReader<String> one = clients.createReader("one", "group", TEXT, ReaderConfig.builder().build());
                EventStreamReader<String> two = clients.createReader("two", "group", TEXT, ReaderConfig.builder().build())) {
            int[] left = {total};
            Future<?> first = server.executor.submit(() -> follow(one, order, left));
            Future<?> second = server.executor.submit(() -> follow(two, order, left));
            first.get();
            second.get();
        }
    }

    private Void follow(EventStreamReader<String> reader, Map<String, List<Integer>> order, int[] left) {
        while (true) {
            String event = reader.readNextEvent(READ_WAIT_MS).getEvent();
            synchronized (order) {
                if (event != null) {
                    String[] parts = event.split(":", 3);
                    order.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(Integer.parseInt(parts[1]));
                    left[0]--;
                }
                if (left[0] <= 0 && event == null) { // what comes doubled comes before the first empty answer
                    check(left[0] == 0, -left[0] + " events too many");
                    return null;
                }
                check(System.currentTimeMillis() < endMs, left[0] + " events did not come in time");
            }
        }
    }
}
