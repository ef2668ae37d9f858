package io.tailrace.compat;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.io.PrintStream;
import java.util.List;

/**
 * Writes transactions of ten events {@code NAME:sequence:~~~}, every fifth of which it aborts, and prints what became of
 * each: {@code committed FIRST LAST}, {@code aborted FIRST LAST}, or {@code unknown FIRST LAST} when an error kept it
 * from learning the outcome: such a transaction may be there whole or not at all. Ends as {@link VerifiableWriter} does.
 */
final class VerifiableTransactions {
    private static final int EVENTS = 10;
    private static final int ABORT_EVERY = 5;
    private static final long LEASE_MS = 30_000;
    private static final long COMMIT_LIMIT_MS = 120_000;
    private static final long POLL_MS = 20;

    private final Server server;
    private final String scope;
    private final String stream;
    private final String name;
    private final int length;
    private final long count;

    VerifiableTransactions(Server server, List<String> arguments) {
        this.server = server;
        scope = arguments.get(0);
        stream = arguments.get(1);
        name = arguments.get(2);
        length = Integer.parseInt(arguments.get(3));
        count = Long.parseLong(arguments.get(4));
    }

    void run() throws Exception {
        PrintStream out = Output.lines();
        StandardInput input = new StandardInput();
        long done = 0;
        try (EventStreamClientFactory clients = server.clients(scope);
                TransactionalEventStreamWriter<String> writer = clients.createTransactionalEventWriter(name, stream,
                        new UTF8StringSerializer(),
                        VerifiableWriter.patient().transactionTimeoutTime(LEASE_MS).build())) {
            for (; (count == 0 || done < count) && !input.ended(); done++) {
                int first = (int) done * EVENTS;
                boolean abort = done % ABORT_EVERY == ABORT_EVERY - 1;
                out.println(one(writer, first, abort) + " " + first + " " + (first + EVENTS - 1));
            }
        }
        out.println("end " + done);
        out.flush();
    }

    private String one(TransactionalEventStreamWriter<String> writer, int first, boolean abort)
            throws InterruptedException {
        Transaction<String> transaction;
        try {
            transaction = writer.beginTxn();
        } catch (RuntimeException unavailable) {
            Thread.sleep(POLL_MS);
            return "aborted"; // never begun
        }
        try {
            for (int i = 0; i < EVENTS; i++) {
                transaction.writeEvent(name, Events.text(name, first + i, length));
            }
            if (abort) {
                transaction.abort();
                return "aborted";
            }
            transaction.commit();
        } catch (TxnFailedException | RuntimeException error) {
            // Whether it was committed is asked for below.
            System.err.println("transaction of " + first + ": " + error);
        }
        return outcome(transaction, abort);
    }

    private static String outcome(Transaction<String> transaction, boolean abort) throws InterruptedException {
        long end = System.currentTimeMillis() + COMMIT_LIMIT_MS;
        while (System.currentTimeMillis() < end) {
            try {
                switch (transaction.checkStatus()) {
                    case COMMITTED:
                        return "committed";
                    case ABORTED:
                        return "aborted";
                    case OPEN:
                        if (abort) {
                            transaction.abort();
                        } else {
                            transaction.commit();
                        }
                        break;
                    default:
                        break;
                }
            } catch (TxnFailedException | RuntimeException error) {
                System.err.println("status: " + error);
            }
            Thread.sleep(POLL_MS); // the client offers nothing to wait for
        }
        return "unknown";
    }
}
