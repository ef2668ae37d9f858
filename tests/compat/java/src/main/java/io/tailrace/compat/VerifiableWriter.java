package io.tailrace.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/**
 * Writes events {@code NAME-k:sequence:~~~}, round after round of one per key, many in flight, and prints the id
 * {@code NAME-k:sequence} of each once it is acknowledged; {@code failed ID ERROR} for one that was given up.
 * With a RATE it hands over that many events a second, else as many as it can. It survives restarts of the server. Ends
 * when standard input ends, or after COUNT rounds (0: without end), once all is acknowledged, with {@code end ROUNDS}.
 */
final class VerifiableWriter {
    private static final int IN_FLIGHT = 1000;

    private final Server server;
    private final String scope;
    private final String stream;
    private final String name;
    private final int keys;
    private final int length;
    private final long rounds;
    private final double rate;

    VerifiableWriter(Server server, List<String> arguments) {
        this.server = server;
        scope = arguments.get(0);
        stream = arguments.get(1);
        name = arguments.get(2);
        keys = Integer.parseInt(arguments.get(3));
        length = Integer.parseInt(arguments.get(4));
        rounds = Long.parseLong(arguments.get(5));
        rate = arguments.size() > 6 ? Double.parseDouble(arguments.get(6)) : 0;
    }

    /** Retries while a test may run. */
    static EventWriterConfig.EventWriterConfigBuilder patient() {
        return EventWriterConfig.builder()
                .initialBackoffMillis(10).backoffMultiple(2).maxBackoffMillis(500).retryAttempts(10_000);
    }

    void run() throws Exception {
        PrintStream out = Output.lines();
        StandardInput input = new StandardInput();
        Semaphore inFlight = new Semaphore(IN_FLIGHT);
        int sequence = 0;
        long begunNs = System.nanoTime();
        try (EventStreamClientFactory clients = server.clients(scope);
                EventStreamWriter<String> writer =
                        clients.createEventWriter(stream, new UTF8StringSerializer(), patient().build())) {
            for (; (rounds == 0 || sequence < rounds) && !input.ended(); sequence++) {
                pace(begunNs, (long) sequence * keys);
                for (int key = 0; key < keys; key++) {
                    String routingKey = name + "-" + key;
                    String text = Events.text(routingKey, sequence, length);
                    inFlight.acquire();
                    writer.writeEvent(routingKey, text).whenComplete((nothing, error) -> {
                        out.println(error == null ? Events.id(text) : "failed " + Events.id(text) + " " + error);
                        inFlight.release();
                    });
                }
            }
            writer.flush();
            inFlight.acquire(IN_FLIGHT);
        }
        out.println("end " + sequence);
        out.flush();
    }

    /** Waits until it is time for the event of this number. */
    private void pace(long begunNs, long events) throws InterruptedException {
        if (rate > 0) {
            long earlyNs = begunNs + (long) (events / rate * 1e9) - System.nanoTime();
            if (earlyNs > 0) {
                TimeUnit.NANOSECONDS.sleep(earlyNs);
            }
        }
    }
}
