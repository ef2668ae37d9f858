package io.tailrace.compat;

import java.util.Locale;

/** What one measurement found; {@code length}: bytes of payload of each event or operation. */
record Result(long events, long nanos, Samples samples) {
    String json(String name, int length) {
        double seconds = nanos / 1e9;
        return String.format(Locale.ROOT,
                "{\"case\": \"%s\", \"events\": %d, \"seconds\": %.3f, \"events_per_s\": %.1f, \"mb_per_s\": %.3f, "
                        + "\"p50_ms\": %s, \"p99_ms\": %s}",
                name, events, seconds, events / seconds, events * (double) length / 1e6 / seconds,
                samples.percentile(0.5), samples.percentile(0.99));
    }
}
