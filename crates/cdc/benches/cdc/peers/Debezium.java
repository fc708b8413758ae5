import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Reads a slot with Debezium's embedded engine, as JSON, and throws the events away: the peer of our null sink.
 *
 * <p>Arguments: port, slot, publication, number of events. It ends after that many, and says as its last line how
 * long they took, from the first batch to the last, and the CPU time that the process had used before the first: a
 * Java process works for seconds before it has read anything, and that is not held against it.
 */
public final class Debezium {
    private final long wanted;
    private final CountDownLatch done = new CountDownLatch(1);
    private long events;
    private long characters;
    private long firstNanos;
    private long lastNanos;
    private double cpuBeforeSeconds;

    private Debezium(long wanted) {
        this.wanted = wanted;
    }

    public static void main(String[] arguments) throws Exception {
        Debezium reader = new Debezium(Long.parseLong(arguments[3]));
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                        .using(settings(arguments[0], arguments[1], arguments[2]))
                        .using((success, message, error) -> reader.ended(success, message, error))
                        .notifying(reader::take)
                        .build();
        ExecutorService thread = Executors.newSingleThreadExecutor();
        thread.execute(engine);
        reader.done.await();
        System.out.printf(
                "{\"seconds\":%.3f,\"events\":%d,\"cpu_before_seconds\":%.3f,\"cpu_seconds\":%.3f,\"characters\":%d}%n",
                (reader.lastNanos - reader.firstNanos) / 1e9,
                reader.events,
                reader.cpuBeforeSeconds,
                cpuSeconds(),
                reader.characters);
        // At once: an orderly end would be measured too.
        Runtime.getRuntime().halt(reader.events >= reader.wanted ? 0 : 1);
    }

    private static Properties settings(String port, String slot, String publication) {
        Properties settings = new Properties();
        settings.setProperty("name", "bench");
        settings.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        settings.setProperty("database.hostname", "127.0.0.1");
        settings.setProperty("database.port", port);
        settings.setProperty("database.user", "postgres");
        settings.setProperty("database.password", "unused");
        settings.setProperty("database.dbname", "postgres");
        settings.setProperty("topic.prefix", "bench");
        settings.setProperty("plugin.name", "pgoutput");
        settings.setProperty("slot.name", slot);
        settings.setProperty("publication.name", publication);
        settings.setProperty("publication.autocreate.mode", "disabled");
        // From where the slot stands.
        settings.setProperty("snapshot.mode", "configuration_based");
        settings.setProperty("snapshot.mode.configuration.based.snapshot.data", "false");
        settings.setProperty("snapshot.mode.configuration.based.snapshot.schema", "false");
        settings.setProperty("snapshot.mode.configuration.based.start.stream", "true");
        settings.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        settings.setProperty("offset.flush.interval.ms", "1000");
        settings.setProperty("key.converter.schemas.enable", "false");
        settings.setProperty("value.converter.schemas.enable", "false");
        // Larger than the defaults, which are slower.
        settings.setProperty("max.batch.size", "8192");
        settings.setProperty("max.queue.size", "65536");
        settings.setProperty("poll.interval.ms", "5");
        return settings;
    }

    private void take(
            List<ChangeEvent<String, String>> batch, RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        if (events == 0) {
            firstNanos = System.nanoTime();
            cpuBeforeSeconds = cpuSeconds();
        }
        for (ChangeEvent<String, String> event : batch) {
            characters += event.value() == null ? 0 : event.value().length();
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
        events += batch.size();
        lastNanos = System.nanoTime();
        if (events >= wanted) {
            done.countDown();
        }
    }

    private void ended(boolean success, String message, Throwable error) {
        System.out.println("the engine ended: " + success + " " + message + " " + error);
        done.countDown();
    }

    private static double cpuSeconds() {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }
}
