package io.tailrace.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.segment.impl.ServerTimeoutException;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Reads a stream from its head with a group of READERS readers and prints the id of each event that it reads. With
 * {@code join} the group exists already: another client created it. Ends when standard input has ended and no reader has
 * found an event for IDLE_MS, with {@code end EVENTS}.
 */
final class VerifiableReader {
    private final Server server;
    private final String scope;
    private final String stream;
    private final String group;
    private final int readers;
    private final long idleMs;
    private final boolean join;
    private final AtomicLong lastEventMs = new AtomicLong(System.currentTimeMillis());
    private final AtomicLong events = new AtomicLong();
    private final PrintStream out = Output.lines();
    private final StandardInput input = new StandardInput();

    VerifiableReader(Server server, List<String> arguments) {
        this.server = server;
        scope = arguments.get(0);
        stream = arguments.get(1);
        group = arguments.get(2);
        readers = Integer.parseInt(arguments.get(3));
        idleMs = Long.parseLong(arguments.get(4));
        join = arguments.size() > 5 && arguments.get(5).equals("join");
    }

    void run() throws Exception {
        try (EventStreamClientFactory clients = server.clients(scope); ReaderGroupManager groups = server.groups(scope)) {
            if (join) {
                groups.getReaderGroup(group).close();
            } else {
                groups.createReaderGroup(group, Server.group(scope, stream).build());
            }
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < readers; i++) {
                String name = "reader-" + i;
                all.add(server.executor.submit(() -> {
                    read(clients, name);
                    return null;
                }));
            }
            for (Future<?> one : all) {
                one.get();
            }
        }
        out.println("end " + events.get());
        out.flush();
    }

    private void read(EventStreamClientFactory clients, String name) throws Exception {
        try (EventStreamReader<String> reader =
                clients.createReader(name, group, new UTF8StringSerializer(), ReaderConfig.builder().build())) {
            while (!input.ended() || System.currentTimeMillis() - lastEventMs.get() < idleMs) {
                EventRead<String> next;
                try {
                    next = reader.readNextEvent(200);
                } catch (TruncatedDataException lost) {
                    out.println("truncated");
                    continue;
                } catch (ServerTimeoutException late) {
                    // The client waits a few seconds for the group's state, and leaves it to the application to ask again.
                    System.err.println(name + ": " + late);
                    continue;
                }
                if (next.getEvent() != null) {
                    out.println(Events.id(next.getEvent()));
                    events.incrementAndGet();
                    lastEventMs.set(System.currentTimeMillis());
                }
            }
        }
    }
}
