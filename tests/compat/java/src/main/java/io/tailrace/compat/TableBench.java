package io.tailrace.compat;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableKey;
import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Measures puts and gets of a key-value table of one segment, with keys of 16 bytes and values of 100, and prints one JSON
 * object as {@link Bench} does. Cases: {@code put-1}, {@code put-256}, {@code get-1}, {@code get-256}; the number is how
 * many operations are in flight.
 */
final class TableBench {
    private static final int KEYS = 4096;
    private static final int KEY_BYTES = 16;
    private static final int VALUE_BYTES = 100;
    private static final int FILL_IN_FLIGHT = 256;
    private static final double WARM_UP_S = 4;
    private static final double MEASURED_S = 8;
    private static final long LIMIT_S = 60;

    private final Server server;
    private final String scope = "bench-" + System.currentTimeMillis();
    private long next;

    TableBench(Server server) {
        this.server = server;
    }

    void run(String name) throws Exception {
        String[] parts = name.split("-");
        boolean puts = parts[0].equals("put");
        if (!puts && !parts[0].equals("get")) {
            throw new IllegalArgumentException("unknown case " + name);
        }
        int inFlight = Integer.parseInt(parts[1]);
        server.streams.createScope(scope);
        try (KeyValueTableManager tables = KeyValueTableManager.create(server.config);
                KeyValueTableFactory factory = KeyValueTableFactory.withScope(scope, server.config)) {
            tables.createKeyValueTable(scope, "table", KeyValueTableConfiguration.builder()
                    .partitionCount(1).primaryKeyLength(KEY_BYTES).secondaryKeyLength(0).build());
            try (KeyValueTable table = factory.forKeyValueTable(
                    "table", KeyValueTableClientConfiguration.builder().build())) {
                measure(table, true, FILL_IN_FLIGHT, KEYS, Double.MAX_VALUE);
                measure(table, puts, inFlight, Long.MAX_VALUE, WARM_UP_S);
                Result result = measure(table, puts, inFlight, Long.MAX_VALUE, MEASURED_S);
                System.out.println(result.json(name, VALUE_BYTES));
            }
            tables.deleteKeyValueTable(scope, "table");
        }
        server.streams.deleteScope(scope);
    }

    /** Keeps operations in flight until there were {@code count} of them or {@code seconds} have gone. */
    private Result measure(KeyValueTable table, boolean puts, int inFlight, long count, double seconds) throws Exception {
        Semaphore room = new Semaphore(inFlight);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Samples samples = new Samples();
        long events = 0;
        long start = System.nanoTime();
        while (events < count && (System.nanoTime() - start) / 1e9 < seconds) {
            Events.check(room.tryAcquire(LIMIT_S, TimeUnit.SECONDS), "no operation ended for " + LIMIT_S + " s");
            long sent = System.nanoTime();
            operation(table, puts).whenComplete((nothing, error) -> {
                samples.add(System.nanoTime() - sent);
                if (error != null) {
                    failure.compareAndSet(null, error);
                }
                room.release();
            });
            events++;
        }
        Events.check(room.tryAcquire(inFlight, LIMIT_S, TimeUnit.SECONDS), "no operation ended for " + LIMIT_S + " s");
        Events.check(failure.get() == null, "an operation failed: " + failure.get());
        return new Result(events, System.nanoTime() - start, samples);
    }

    private CompletableFuture<Void> operation(KeyValueTable table, boolean puts) {
        long number = next++;
        TableKey key = new TableKey(ByteBuffer.allocate(KEY_BYTES).putLong(KEY_BYTES - Long.BYTES, number % KEYS));
        if (puts) {
            ByteBuffer value = ByteBuffer.allocate(VALUE_BYTES).putLong(0, number);
            return table.update(new Put(key, value)).thenAccept(version -> { });
        }
        return table.get(key).thenAccept(entry -> Events.check(entry != null, "an entry is missing"));
    }
}
