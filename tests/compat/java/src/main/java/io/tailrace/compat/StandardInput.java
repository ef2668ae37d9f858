package io.tailrace.compat;

import java.io.IOException;

/** Standard input as a signal: its end asks a command to finish. */
final class StandardInput {
    private volatile boolean ended;

    StandardInput() {
        Thread waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException error) {
                System.err.println("standard input: " + error);
            }
            ended = true;
        }, "standard-input");
        waiting.setDaemon(true);
        waiting.start();
    }

    boolean ended() {
        return ended;
    }
}
