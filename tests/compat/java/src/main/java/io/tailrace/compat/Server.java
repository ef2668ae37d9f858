package io.tailrace.compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** The server under test: what every command needs of it. */
final class Server implements AutoCloseable {
    static final long CHECKPOINT_INTERVAL_MS = 1000;
    static final long REFRESH_INTERVAL_MS = 500;
    private static final long CALL_LIMIT_S = 300;

    final ClientConfig config;
    final StreamManager streams;
    final ScheduledExecutorService executor = Executors.newScheduledThreadPool(4);
    private final Controller controller;

    Server(URI uri) {
        config = ClientConfig.builder().controllerURI(uri).build();
        streams = StreamManager.create(config);
        controller = new ControllerImpl(ControllerImplConfig.builder().clientConfig(config).build(), executor);
    }

    /** Creates the scope and the stream with a fixed number of segments, unless they exist. */
    void create(String scope, String stream, int segments) {
        streams.createScope(scope);
        streams.createStream(scope, stream, fixed(segments));
    }

    /** Creates a stream with all of its configuration: StreamManager sends policies and tags only. */
    void createWhole(String scope, String stream, StreamConfiguration config) throws Exception {
        controller.createStream(scope, stream, config).get(CALL_LIMIT_S, TimeUnit.SECONDS);
    }

    static StreamConfiguration fixed(int segments) {
        return StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build();
    }

    EventStreamClientFactory clients(String scope) {
        return EventStreamClientFactory.withScope(scope, config);
    }

    ReaderGroupManager groups(String scope) {
        return ReaderGroupManager.withScope(scope, config);
    }

    /** Readers pass a scale only at a checkpoint, so the automatic ones come often. */
    static ReaderGroupConfig.ReaderGroupConfigBuilder group(String scope, String stream) {
        return ReaderGroupConfig.builder()
                .stream(Stream.of(scope, stream))
                .automaticCheckpointIntervalMillis(CHECKPOINT_INTERVAL_MS)
                .groupRefreshTimeMillis(REFRESH_INTERVAL_MS);
    }

    /** Ids of the active segments. */
    List<Long> segments(String scope, String stream) throws Exception {
        return controller.getCurrentSegments(scope, stream).get(CALL_LIMIT_S, TimeUnit.SECONDS).getSegments().stream()
                .map(segment -> segment.getSegmentId())
                .sorted()
                .collect(Collectors.toList());
    }

    /** Seals all active segments and replaces them by {@code count} equal ranges; returns when that is done. */
    void scale(String scope, String stream, int count) throws Exception {
        Map<Double, Double> ranges = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            ranges.put((double) i / count, i + 1 == count ? 1.0 : (double) (i + 1) / count);
        }
        boolean done = controller.scaleStream(Stream.of(scope, stream), segments(scope, stream), ranges, executor)
                .getFuture().get(CALL_LIMIT_S, TimeUnit.SECONDS);
        if (!done) {
            throw new IllegalStateException("the scale was refused");
        }
    }

    @Override
    public void close() {
        streams.close();
        controller.close();
        executor.shutdownNow();
    }
}
