package io.tailrace.compat;

import java.net.URI;
import java.util.Arrays;
import java.util.List;

/**
 * A program around the published Java client. The first argument is what to do, the second the controller's URI.
 *
 * <pre>
 * scenario URI NAME                                       one check; exit code 1 and a stack trace when it fails
 * create URI SCOPE STREAM SEGMENTS                        scope and stream, when they do not exist
 * scale URI SCOPE STREAM SEGMENTS                         seals all segments, replaces them by equal ranges
 * verifiable-writer URI SCOPE STREAM NAME KEYS LENGTH COUNT [RATE]  see {@link VerifiableWriter}
 * verifiable-txn-writer URI SCOPE STREAM NAME LENGTH COUNT       see {@link VerifiableTransactions}
 * verifiable-reader URI SCOPE STREAM GROUP READERS IDLE_MS [join]   see {@link VerifiableReader}
 * rolling URI SCOPE EPOCHS TRANSACTIONS SEED              see {@link RollingTransactions}
 * bench URI CASE                                          see {@link Bench}
 * table-bench URI CASE                                    see {@link TableBench}
 * </pre>
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] words) {
        if (words.length < 2) {
            System.err.println("usage: COMMAND URI ARGUMENTS...");
            System.exit(2);
        }
        List<String> rest = Arrays.asList(words).subList(2, words.length);
        int code = 0;
        try (Server server = new Server(URI.create(words[1]))) {
            run(words[0], server, rest);
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.out.flush();
        System.exit(code); // the client leaves threads of its own behind
    }

    private static void run(String command, Server server, List<String> rest) throws Exception {
        switch (command) {
            case "scenario" -> Scenarios.run(server, rest.get(0));
            case "create" -> server.create(rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)));
            case "scale" -> server.scale(rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)));
            case "verifiable-writer" -> new VerifiableWriter(server, rest).run();
            case "verifiable-txn-writer" -> new VerifiableTransactions(server, rest).run();
            case "verifiable-reader" -> new VerifiableReader(server, rest).run();
            case "rolling" -> new RollingTransactions(server, rest).run();
            case "bench" -> new Bench(server).run(rest.get(0));
            case "table-bench" -> new TableBench(server).run(rest.get(0));
            default -> throw new IllegalArgumentException("unknown command " + command);
        }
    }
}
