package io.tailrace.compat;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Events that can be recognised: {@code key:sequence:} and padding, and the check that all of them arrived. */
final class Events {
    private final Map<String, List<Integer>> read = new HashMap<>();
    private int count;

    static String text(String key, int sequence, int length) {
        StringBuilder made = new StringBuilder(length).append(key).append(':').append(sequence).append(':');
        while (made.length() < length) {
            made.append('~');
        }
        return made.toString();
    }

    /** {@code key:sequence} of an event. */
    static String id(String text) {
        return text.substring(0, text.indexOf(':', text.indexOf(':') + 1));
    }

    synchronized void add(String text) {
        String[] parts = text.split(":", 3);
        check(text.equals(text(parts[0], Integer.parseInt(parts[1]), text.length())), "damaged event " + text);
        read.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(Integer.parseInt(parts[1]));
        count++;
    }

    synchronized int count() {
        return count;
    }

    /** Events {@code first} to {@code last} - 1 of every key once and in order, and nothing else. */
    synchronized void checkExactlyOnce(List<String> keys, int first, int last) {
        Map<String, List<Integer>> expected = new HashMap<>();
        for (String key : keys) {
            List<Integer> all = new ArrayList<>();
            for (int sequence = first; sequence < last; sequence++) {
                all.add(sequence);
            }
            expected.put(key, all);
        }
        for (String key : keys) {
            check(expected.get(key).equals(read.get(key)), key + ": read " + read.get(key));
        }
        check(read.keySet().equals(expected.keySet()), "keys " + read.keySet());
    }

    static void check(boolean condition, String otherwise) {
        if (!condition) {
            throw new AssertionError(otherwise);
        }
    }
}
