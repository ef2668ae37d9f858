package io.tailrace.compat;

import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Standard output for many lines: buffered, and never more than a moment behind. */
final class Output {
    private static final int BUFFER_BYTES = 1 << 16;
    private static final long FLUSH_INTERVAL_MS = 20;

    private Output() {
    }

    static PrintStream lines() {
        PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), BUFFER_BYTES));
        Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "flush");
            thread.setDaemon(true);
            return thread;
        }).scheduleAtFixedRate(out::flush, FLUSH_INTERVAL_MS, FLUSH_INTERVAL_MS, TimeUnit.MILLISECONDS);
        return out;
    }
}
