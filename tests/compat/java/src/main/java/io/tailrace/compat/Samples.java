package io.tailrace.compat;

import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;

/** Latencies of operations that end on any thread. */
final class Samples {
    private static final int MAX_SAMPLES = 2_000_000;

    private final long[] nanos = new long[MAX_SAMPLES];
    private final AtomicInteger count = new AtomicInteger();

    void add(long value) {
        int place = count.getAndIncrement();
        if (place < MAX_SAMPLES) {
            nanos[place] = value;
        }
    }

    /** In ms, as JSON. */
    String percentile(double part) {
        int taken = Math.min(count.get(), MAX_SAMPLES);
        if (taken == 0) {
            return "null";
        }
        long[] sorted = Arrays.copyOf(nanos, taken);
        Arrays.sort(sorted);
        return String.format(Locale.ROOT, "%.3f", sorted[(int) Math.min(taken - 1, part * taken)] / 1e6);
    }
}
