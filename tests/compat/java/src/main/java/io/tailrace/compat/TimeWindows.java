package io.tailrace.compat;

import static io.tailrace.compat.Events.check;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Time windows of a reader, while a writer notes times, transactions commit with times, and the stream scales. The
 * events of time t are written before t is noted, so an event that is read must not be older than the window. The upper
 * bound belongs to the position that the group has of its readers, which lags behind the reader.
 */
final class TimeWindows {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final String STREAM = "stream";
    private static final int KEYS = 8;
    private static final int LENGTH = 60;
    private static final int WINDOWS = 4;
    private static final long PAUSE_MS = 100;
    private static final long TIMEOUT_MS = 60_000;
    private static final long LIMIT_MS = 300_000;

    private final Server server;
    private final String scope = "java-time-windows-" + System.currentTimeMillis();
    private final ExecutorService workers = Executors.newFixedThreadPool(2);
    private final CountDownLatch committed = new CountDownLatch(1); // so that no writer joins with an old time
    private final AtomicBoolean stopped = new AtomicBoolean();
    private final AtomicLong events = new AtomicLong();

    TimeWindows(Server server) {
        this.server = server;
    }

    void run() throws Exception {
        server.streams.createScope(scope);
        StreamConfiguration config = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(2)).timestampAggregationTimeout(TIMEOUT_MS).build();
        server.createWhole(scope, STREAM, config);
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            check(groups.createReaderGroup("group", Server.group(scope, STREAM).build()), "the group existed already");
            List<Future<Void>> writes = new ArrayList<>();
            writes.add(workers.submit(() -> write(clients)));
            writes.add(workers.submit(() -> commit(clients)));
            TreeSet<Long> lower = new TreeSet<>();
            long end = System.currentTimeMillis() + LIMIT_MS;
            boolean scaled = false;
            try (EventStreamReader<String> reader =
                    clients.createReader("reader", "group", TEXT, ReaderConfig.builder().build())) {
                while (lower.size() < WINDOWS) {
                    check(System.currentTimeMillis() < end, "windows in time: " + lower);
                    for (Future<Void> each : writes) {
                        if (each.isDone()) {
                            each.get(); // throws why it ended
                        }
                    }
                    read(reader, lower);
                    if (!lower.isEmpty() && !scaled) {
                        server.scale(scope, STREAM, 3);
                        lower.clear();
                        scaled = true;
                    }
                }
            }
            stopped.set(true);
            for (Future<Void> each : writes) {
                each.get();
            }
            workers.shutdown();
            System.out.println("lower bounds after the scale " + lower + ", " + events.get() + " events read");
        }
    }

    /** Reads one event, and checks it against the window before. */
    private void read(EventStreamReader<String> reader, TreeSet<Long> lower) {
        Stream stream = Stream.of(scope, STREAM);
        TimeWindow window = reader.getCurrentTimeWindow(stream);
        Long bound = window.getLowerTimeBound();
        String event = reader.readNextEvent(500).getEvent();
        if (bound != null) {
            check(lower.isEmpty() || bound >= lower.last(), "the lower bound went back: " + window);
            check(window.getUpperTimeBound() == null || window.getUpperTimeBound() >= bound, "bounds: " + window);
            lower.add(bound);
        }
        if (event == null) {
            return;
        }
        events.incrementAndGet();
        long time = Long.parseLong(event.split(":")[1]);
        check(bound == null || time >= bound, event + " is older than " + window);
    }

    private Void write(EventStreamClientFactory clients) throws Exception {
        check(committed.await(LIMIT_MS, TimeUnit.MILLISECONDS), "no commit in time");
        try (EventStreamWriter<String> writer =
                clients.createEventWriter("plain", STREAM, TEXT, EventWriterConfig.builder().build())) {
            for (int time = 1; !stopped.get(); time++) {
                for (int key = 0; key < KEYS; key++) {
                    writer.writeEvent("plain-" + key, Events.text("plain-" + key, time, LENGTH));
                }
                writer.flush();
                writer.noteTime(time);
                Thread.sleep(PAUSE_MS);
            }
        }
        return null;
    }

    private Void commit(EventStreamClientFactory clients) throws Exception {
        try (TransactionalEventStreamWriter<String> writer = clients.createTransactionalEventWriter(
                "committing", STREAM, TEXT, EventWriterConfig.builder().build())) {
            for (int time = 1; !stopped.get(); time++) {
                Transaction<String> transaction = writer.beginTxn();
                for (int key = 0; key < KEYS; key++) {
                    transaction.writeEvent("committed-" + key, Events.text("committed-" + key, time, LENGTH));
                }
                transaction.commit(time);
                while (transaction.checkStatus() != Transaction.Status.COMMITTED) {
                    Thread.sleep(PAUSE_MS / 2);
                }
                committed.countDown();
                Thread.sleep(PAUSE_MS);
            }
        }
        return null;
    }
}
