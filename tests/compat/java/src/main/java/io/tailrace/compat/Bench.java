package io.tailrace.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.nio.ByteBuffer;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Measures one case against a running server and prints one JSON object: case, events, seconds, events_per_s, mb_per_s
 * (10^6 bytes of payload), p50_ms and p99_ms (null where there is no such thing). Every case warms up first.
 *
 * <p>Cases: {@code ingest-100b-1}, {@code ingest-100b-16}, {@code ingest-10kb-1} (many in flight, last number: segments),
 * {@code single-100b}, {@code single-10kb} (one at a time), {@code catchup-100b-1}, {@code catchup-100b-4},
 * {@code catchup-10kb-1} (read what was written before), {@code tail-100b-4-RATE} (from write to read, RATE events/s).
 * What a case creates it deletes, so that a server in memory has room for the next one.
 */
final class Bench {
    private static final ByteArraySerializer BYTES = new ByteArraySerializer();
    private static final int KEYS = 256;
    private static final int MAX_IN_FLIGHT_BYTES = 32 << 20;
    private static final int MAX_IN_FLIGHT_EVENTS = 100_000;
    private static final double WARM_UP_S = 4;
    private static final double MEASURED_S = 8;

    private final Server server;
    private final String scope = "bench-" + System.currentTimeMillis();

    Bench(Server server) {
        this.server = server;
    }

    void run(String name) throws Exception {
        String[] parts = name.split("-");
        int length = parts[1].equals("100b") ? 100 : parts[1].equals("10kb") ? 10_000 : -1;
        if (length < 0) {
            throw new IllegalArgumentException("unknown case " + name);
        }
        int segments = parts.length > 2 ? Integer.parseInt(parts[2]) : 1;
        server.create(scope, "stream", segments);
        Result result = switch (parts[0]) {
            case "ingest" -> ingest(length);
            case "single" -> single(length);
            case "catchup" -> catchUp(length);
            case "tail" -> tail(length, Integer.parseInt(parts[3]));
            default -> throw new IllegalArgumentException("unknown case " + name);
        };
        server.streams.deleteScopeRecursive(scope);
        System.out.println(result.json(name, length));
    }

    private Result ingest(int length) throws Exception {
        try (EventStreamClientFactory clients = server.clients(scope); EventStreamWriter<byte[]> writer = writer(clients)) {
            pipeline(writer, length, WARM_UP_S);
            return pipeline(writer, length, MEASURED_S);
        }
    }

    /** As many events in flight as the bounds allow, until {@code seconds} have gone and all are acknowledged. */
    private static Result pipeline(EventStreamWriter<byte[]> writer, int length, double seconds) throws Exception {
        int bound = Math.min(MAX_IN_FLIGHT_EVENTS, MAX_IN_FLIGHT_BYTES / length);
        Semaphore inFlight = new Semaphore(bound);
        AtomicInteger failed = new AtomicInteger();
        Samples samples = new Samples();
        long events = 0;
        long start = System.nanoTime();
        long end = start + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            inFlight.acquire();
            boolean sample = events % 16 == 0;
            long sent = System.nanoTime();
            writer.writeEvent("key-" + events % KEYS, new byte[length]).whenComplete((nothing, error) -> {
                inFlight.release();
                if (error != null) {
                    failed.incrementAndGet();
                } else if (sample) {
                    samples.add(System.nanoTime() - sent);
                }
            });
            events++;
        }
        writer.flush();
        inFlight.acquire(bound);
        Events.check(failed.get() == 0, failed.get() + " events failed");
        return new Result(events, System.nanoTime() - start, samples);
    }

    private Result single(int length) throws Exception {
        try (EventStreamClientFactory clients = server.clients(scope); EventStreamWriter<byte[]> writer = writer(clients)) {
            oneAtATime(writer, length, WARM_UP_S);
            return oneAtATime(writer, length, MEASURED_S);
        }
    }

    private static Result oneAtATime(EventStreamWriter<byte[]> writer, int length, double seconds) throws Exception {
        Samples samples = new Samples();
        long events = 0;
        long start = System.nanoTime();
        long end = start + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            long sent = System.nanoTime();
            writer.writeEvent("key", new byte[length]).get(60, TimeUnit.SECONDS);
            samples.add(System.nanoTime() - sent);
            events++;
        }
        return new Result(events, System.nanoTime() - start, samples);
    }

    /** A first group warms up over everything; a second, new one is measured. */
    private Result catchUp(int length) throws Exception {
        long written;
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope)) {
            try (EventStreamWriter<byte[]> writer = writer(clients)) {
                written = pipeline(writer, length, MEASURED_S).events();
            }
            readAll(clients, groups, "warm-up", written);
            return readAll(clients, groups, "measured", written);
        }
    }

    private Result readAll(EventStreamClientFactory clients, ReaderGroupManager groups, String group, long count) {
        groups.createReaderGroup(group, Server.group(scope, "stream").disableAutomaticCheckpoints().build());
        try (EventStreamReader<byte[]> reader = clients.createReader("reader", group, BYTES, ReaderConfig.builder().build())) {
            long start = System.nanoTime();
            long events = 0;
            while (events < count) {
                EventRead<byte[]> next = reader.readNextEvent(10_000);
                Events.check(next.getEvent() != null, "no event for 10 s, " + events + " of " + count + " so far");
                events++;
            }
            return new Result(events, System.nanoTime() - start, new Samples());
        }
    }

    private Result tail(int length, int perSecond) throws Exception {
        try (EventStreamClientFactory clients = server.clients(scope);
                ReaderGroupManager groups = server.groups(scope);
                EventStreamWriter<byte[]> writer = writer(clients)) {
            groups.createReaderGroup("tail", Server.group(scope, "stream").disableAutomaticCheckpoints().build());
            try (EventStreamReader<byte[]> reader =
                    clients.createReader("reader", "tail", BYTES, ReaderConfig.builder().build())) {
                follow(writer, reader, length, perSecond, WARM_UP_S);
                return follow(writer, reader, length, perSecond, MEASURED_S);
            }
        }
    }

    /** Each event carries the time of its writing; the reader is in the same process and knows the same clock. */
    private Result follow(EventStreamWriter<byte[]> writer, EventStreamReader<byte[]> reader, int length, int perSecond,
            double seconds) throws Exception {
        long count = (long) (perSecond * seconds);
        Samples samples = new Samples();
        long start = System.nanoTime();
        Thread writing = new Thread(() -> {
            for (long i = 0; i < count; i++) {
                long due = start + i * 1_000_000_000L / perSecond;
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                byte[] event = new byte[length];
                ByteBuffer.wrap(event).putLong(System.nanoTime());
                writer.writeEvent("key-" + i % KEYS, event);
            }
            writer.flush();
        }, "writer");
        writing.start();
        for (long read = 0; read < count; read++) {
            EventRead<byte[]> next = reader.readNextEvent(10_000);
            Events.check(next.getEvent() != null, "no event for 10 s, " + read + " of " + count + " so far");
            samples.add(System.nanoTime() - ByteBuffer.wrap(next.getEvent()).getLong());
        }
        writing.join();
        return new Result(count, System.nanoTime() - start, samples);
    }

    private EventStreamWriter<byte[]> writer(EventStreamClientFactory clients) {
        return clients.createEventWriter("stream", BYTES, EventWriterConfig.builder().build());
    }
}
