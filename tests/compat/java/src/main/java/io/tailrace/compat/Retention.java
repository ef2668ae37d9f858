package io.tailrace.compat;

import static io.tailrace.compat.Events.check;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.time.Duration;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Retention by size with subscribers of both kinds, and by time. The server applies policies each second. */
final class Retention {
    private static final UTF8StringSerializer TEXT = new UTF8StringSerializer();
    private static final long LIMIT_MS = 120_000;
    private static final long SOME_ROUNDS_MS = 4_000;
    private static final int LENGTH = 1000;
    private static final int MINIMUM = 20_000;
    private static final int MAXIMUM = 300_000;
    private static final Duration MINIMUM_AGE = Duration.ofSeconds(4);
    private static final Duration MAXIMUM_AGE = Duration.ofSeconds(12);

    private final Server server;
    private final String scope = "java-retention-" + System.currentTimeMillis();

    Retention(Server server) {
        this.server = server;
    }

    void run() throws Exception {
        server.streams.createScope(scope);
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            manual(clients, groups);
            automatic(clients, groups);
            timed(clients);
            timedAndHeld(clients, groups);
            timedAndReleased(clients, groups);
        }
    }

    /** What an application releases goes, exactly to there; without its subscription only the minimum stays. */
    private void manual(EventStreamClientFactory clients, ReaderGroupManager groups) throws Exception {
        Stream stream = create("manual", RetentionPolicy.bySizeBytes(MINIMUM));
        ReaderGroup group = subscribe(groups, stream);
        group.updateRetentionStreamCut(Map.of(stream, head(stream)));
        write(clients, stream, 0, 100);
        Thread.sleep(SOME_ROUNDS_MS);
        check(offset(head(stream)) == 0, "data went that were not released");
        StreamCut released;
        try (EventStreamReader<String> reader = clients.createReader("reader", "manual", TEXT, ReaderConfig.builder().build())) {
            read(reader, 0, 50);
            CompletableFuture<Map<Stream, StreamCut>> cuts = group.generateStreamCuts(server.executor);
            await("the reader's position is known", () -> {
                reader.readNextEvent(100); // may read one more
                return cuts.isDone();
            });
            released = cuts.get().get(stream);
        }
        long before = offset(released);
        check(before > 0, "no position");
        group.updateRetentionStreamCut(Map.of(stream, released));
        await("the released data go", () -> offset(head(stream)) == before);
        Thread.sleep(SOME_ROUNDS_MS);
        check(offset(head(stream)) == before, "more went than was released");
        group.resetReaderGroup(config(stream, StreamDataRetention.NONE));
        int[] next = {100};
        await("the minimum decides without subscribers", () -> {
            write(clients, stream, next[0], next[0] += 5); // a stream is cut where a round found its tail
            return offset(head(stream)) > before;
        });
        check(offset(tail(stream)) - offset(head(stream)) >= MINIMUM, "less than the minimum is there");
    }

    /** A subscriber that keeps up releases by its checkpoints; one that stopped holds no more than the maximum. */
    private void automatic(EventStreamClientFactory clients, ReaderGroupManager groups) throws Exception {
        Stream stream = create("automatic", RetentionPolicy.bySizeBytes(MINIMUM, MAXIMUM));
        ReaderGroupConfig config = config(stream, StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT);
        check(groups.createReaderGroup("automatic", config), "the reader group existed already");
        int[] next = {0};
        long held;
        try (EventStreamReader<String> reader = clients.createReader("reader", "automatic", TEXT, ReaderConfig.builder().build())) {
            await("what was read goes", () -> {
                int first = next[0];
                write(clients, stream, first, next[0] += 5);
                read(reader, first, next[0]); // checkpoints are taken and published by reads, too
                return offset(head(stream)) > 0;
            });
            held = offset(tail(stream));
        }
        check(offset(tail(stream)) - offset(head(stream)) >= MINIMUM, "less than the minimum is there");
        write(clients, stream, next[0], next[0] += 200);
        Thread.sleep(SOME_ROUNDS_MS);
        check(offset(head(stream)) <= held, "unread data went below the maximum");
        await("the maximum is enforced", () -> {
            write(clients, stream, next[0], next[0] += 20);
            return offset(head(stream)) > held;
        });
        check(offset(tail(stream)) - offset(head(stream)) >= MINIMUM, "less than the minimum is there");
    }

    /** Without subscribers what is older than the minimum goes, and nothing younger. */
    private void timed(EventStreamClientFactory clients) throws Exception {
        goesByAge(clients, create("timed", RetentionPolicy.byTime(MINIMUM_AGE)), MINIMUM_AGE);
    }

    /** A subscriber that releases nothing holds data until the maximum age. */
    private void timedAndHeld(EventStreamClientFactory clients, ReaderGroupManager groups) throws Exception {
        Stream stream = create("timed-held", RetentionPolicy.byTime(MINIMUM_AGE, MAXIMUM_AGE));
        subscribe(groups, stream).updateRetentionStreamCut(Map.of(stream, head(stream)));
        goesByAge(clients, stream, MAXIMUM_AGE);
    }

    /** Between both ages data go when they are released, exactly to there. */
    private void timedAndReleased(EventStreamClientFactory clients, ReaderGroupManager groups) throws Exception {
        Stream stream = create("timed-released", RetentionPolicy.byTime(MINIMUM_AGE, Duration.ofHours(1)));
        ReaderGroup group = subscribe(groups, stream);
        group.updateRetentionStreamCut(Map.of(stream, head(stream)));
        write(clients, stream, 0, 50);
        StreamCut released = tail(stream);
        write(clients, stream, 50, 100);
        Thread.sleep(MINIMUM_AGE.toMillis() + SOME_ROUNDS_MS);
        check(offset(head(stream)) == 0, "data went that were not released");
        group.updateRetentionStreamCut(Map.of(stream, released));
        await("the released data go", () -> offset(head(stream)) == offset(released));
        Thread.sleep(SOME_ROUNDS_MS);
        check(offset(head(stream)) == offset(released), "more went than was released");
    }

    /** Write until the head has moved: what is gone was written at least that long before. */
    private void goesByAge(EventStreamClientFactory clients, Stream stream, Duration age) throws Exception {
        NavigableMap<Long, Long> begunNanos = new TreeMap<>(); // when the writes began, by where they ended
        int[] next = {0};
        await("what is old goes", () -> {
            long begun = System.nanoTime();
            write(clients, stream, next[0], next[0] += 5);
            begunNanos.put(offset(tail(stream)), begun);
            long head = offset(head(stream));
            Map.Entry<Long, Long> last = begunNanos.floorEntry(head);
            check(head == 0 || last != null, "a write is gone in part");
            check(last == null || System.nanoTime() - last.getValue() >= age.toNanos(), "younger data went");
            return head > 0;
        });
    }

    private ReaderGroup subscribe(ReaderGroupManager groups, Stream stream) {
        ReaderGroupConfig config = config(stream, StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT);
        check(groups.createReaderGroup(stream.getStreamName(), config), "the reader group existed already");
        return groups.getReaderGroup(stream.getStreamName());
    }

    private Stream create(String name, RetentionPolicy policy) {
        StreamConfiguration config =
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(1)).retentionPolicy(policy).build();
        check(server.streams.createStream(scope, name, config), "the stream existed already");
        return Stream.of(scope, name);
    }

    private static ReaderGroupConfig config(Stream stream, StreamDataRetention retention) {
        return Server.group(stream.getScope(), stream.getStreamName()).retentionType(retention).build();
    }

    private static void write(EventStreamClientFactory clients, Stream stream, int first, int last) {
        EventWriterConfig config = EventWriterConfig.builder().build();
        try (EventStreamWriter<String> writer = clients.createEventWriter(stream.getStreamName(), TEXT, config)) {
            for (int sequence = first; sequence < last; sequence++) {
                writer.writeEvent("key", Events.text("key", sequence, LENGTH));
            }
            writer.flush();
        }
    }

    private static void read(EventStreamReader<String> reader, int first, int last) {
        long end = System.currentTimeMillis() + LIMIT_MS;
        for (int sequence = first; sequence < last;) {
            check(System.currentTimeMillis() < end, "event " + sequence + " in time");
            EventRead<String> next = reader.readNextEvent(1000);
            if (next.getEvent() != null) {
                check(next.getEvent().equals(Events.text("key", sequence, LENGTH)), "not event " + sequence);
                sequence++;
            }
        }
    }

    private StreamCut head(Stream stream) throws Exception {
        return server.streams.fetchStreamInfo(stream.getScope(), stream.getStreamName())
                .get(60, TimeUnit.SECONDS).getHeadStreamCut();
    }

    private StreamCut tail(Stream stream) throws Exception {
        return server.streams.fetchStreamInfo(stream.getScope(), stream.getStreamName())
                .get(60, TimeUnit.SECONDS).getTailStreamCut();
    }

    /** The position of a cut of a stream of one segment. */
    private static long offset(StreamCut cut) {
        return cut.asImpl().getPositions().values().iterator().next();
    }

    private static void await(String what, Callable<Boolean> condition) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.call()) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
            Thread.sleep(200); // the client offers nothing to wait for
        }
    }
}
