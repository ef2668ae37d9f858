import io.pravega.common.util.ByteArraySegment;
import io.pravega.segmentstore.storage.cache.DirectMemoryCache;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;

/**
 * Measures Pravega's cache as {@code tailrace bench cache} measures the others, and prints one JSON object: the best
 * milliseconds of each case. Run with {@code java -cp JARS CacheDriver.java ENTRIES REPEATS MAX_BYTES FOLDER}; the folder has
 * a file {@code CASE.plan} for each random case: a record for each operation of the length to insert (-1: remove), and which
 * entry to remove and to read, as one int and two doubles; and before them the maximum of lengths and the number of records.
 */
public final class CacheDriver {
    private static final int ENTRY_BYTES = 10 * 1024;

    private record Plan(int maxLength, int[] lengths, double[] removes, double[] reads) {
        static Plan read(Path file) throws Exception {
            try (DataInputStream in = new DataInputStream(new BufferedInputStream(Files.newInputStream(file), 1 << 20))) {
                int maxLength = in.readInt();
                int count = in.readInt();
                Plan plan = new Plan(maxLength, new int[count], new double[count], new double[count]);
                for (int i = 0; i < count; i++) {
                    plan.lengths[i] = in.readInt();
                    plan.removes[i] = in.readDouble();
                    plan.reads[i] = in.readDouble();
                }
                return plan;
            }
        }
    }

    public static void main(String[] words) throws Exception {
        int entries = Integer.parseInt(words[0]);
        int repeats = Integer.parseInt(words[1]);
        Map<String, Plan> plans = new LinkedHashMap<>();
        try (var files = Files.list(Path.of(words[3]))) {
            for (Path file : files.sorted().toList()) {
                plans.put(file.getFileName().toString().replace(".plan", ""), Plan.read(file));
            }
        }
        Map<String, Double> best = new LinkedHashMap<>();
        try (DirectMemoryCache cache = new DirectMemoryCache(Long.parseLong(words[2]))) {
            for (int i = 0; i < repeats; i++) {
                sequential(cache, entries, best);
                for (Map.Entry<String, Plan> plan : plans.entrySet()) {
                    best.merge(plan.getKey(), random(cache, plan.getValue()), Math::min);
                }
            }
        }
        StringBuilder json = new StringBuilder("{");
        best.forEach((name, ms) -> json.append(json.length() > 1 ? ", " : "").append('"').append(name).append("\": ").append(ms));
        System.out.println(json.append('}'));
    }

    private static void sequential(DirectMemoryCache cache, int entries, Map<String, Double> best) {
        byte[] data = new byte[ENTRY_BYTES];
        new Random(1).nextBytes(data);
        byte[] target = new byte[ENTRY_BYTES];
        int[] handles = new int[entries];
        long began = System.nanoTime();
        for (int i = 0; i < entries; i++) {
            handles[i] = cache.insert(new ByteArraySegment(data));
        }
        long inserted = System.nanoTime();
        for (int handle : handles) {
            cache.get(handle).copyTo(ByteBuffer.wrap(target));
        }
        long read = System.nanoTime();
        for (int handle : handles) {
            cache.delete(handle);
        }
        long deleted = System.nanoTime();
        check(Arrays.equals(data, target));
        best.merge("sequential-insert", (inserted - began) / 1e6, Math::min);
        best.merge("sequential-get", (read - inserted) / 1e6, Math::min);
        best.merge("sequential-delete", (deleted - read) / 1e6, Math::min);
    }

    /** Returns the milliseconds of a plan, without the deletion of the entries that remain. */
    private static double random(DirectMemoryCache cache, Plan plan) {
        byte[] data = new byte[plan.maxLength];
        new Random(2).nextBytes(data);
        byte[] target = new byte[plan.maxLength];
        int[] live = new int[plan.lengths.length];
        int count = 0;
        int copied = 0;
        long began = System.nanoTime();
        for (int i = 0; i < plan.lengths.length; i++) {
            if (plan.lengths[i] >= 0) {
                live[count++] = cache.insert(new ByteArraySegment(data, 0, plan.lengths[i]));
            } else if (count > 0) {
                int chosen = (int) (plan.removes[i] * count);
                cache.delete(live[chosen]);
                live[chosen] = live[--count];
            }
            if (count > 0) {
                var view = cache.get(live[(int) (plan.reads[i] * count)]);
                copied = view.copyTo(ByteBuffer.wrap(target));
            }
        }
        double ms = (System.nanoTime() - began) / 1e6;
        check(Arrays.equals(data, 0, copied, target, 0, copied));
        for (int i = 0; i < count; i++) {
            cache.delete(live[i]);
        }
        return ms;
    }

    private static void check(boolean same) {
        if (!same) {
            throw new AssertionError("the cache returned wrong bytes");
        }
    }
}
