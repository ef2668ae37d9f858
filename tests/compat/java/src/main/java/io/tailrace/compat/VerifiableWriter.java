package io.tailrace.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Semaphore;

/**
 * Writes events {@code NAME-k:sequence:~~~}, round after round of one per key, many in flight, and prints the id
 * {@code NAME-k:sequence} of each as soon as it is acknowledged; {@code failed ID ERROR} for one that was given up.
 * It survives restarts of the server. Ends when standard input ends, or after COUNT rounds (0: without end), once all is
 * acknowledged, with {@code end ROUNDS}.
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

    VerifiableWriter(Server server, List<String> arguments) {
        this.server = server;
        scope = arguments.get(0);
        stream = arguments.get(1);
        name = arguments.get(2);
        keys = Integer.parseInt(arguments.get(3));
        length = Integer.parseInt(arguments.get(4));
        rounds = Long.parseLong(arguments.get(5));
    }

    /** Tries again for as long as a test may last. */
    static EventWriterConfig.EventWriterConfigBuilder patient() {
        return EventWriterConfig.builder()
                .initialBackoffMillis(10).backoffMultiple(2).maxBackoffMillis(500).retryAttempts(10_000);
    }

    void run() throws Exception {
        PrintStream out = Output.lines();
        StandardInput input = new StandardInput();
        Semaphore inFlight = new Semaphore(IN_FLIGHT);
        int sequence = 0;
        try (EventStreamClientFactory clients = server.clients(scope);
                EventStreamWriter<String> writer =
                        clients.createEventWriter(stream, new UTF8StringSerializer(), patient().build())) {
            for (; (rounds == 0 || sequence < rounds) && !input.ended(); sequence++) {
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
}
