import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.KinesisClientLibException;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * Reads a stream from its beginning with the Java KCL, visits every record and checkpoints once a second.
 *
 * <p>Arguments: the URLs of Kinesis and DynamoDB, stream, application, number of records. It ends after that many, and
 * says as its last line how long they took, from the first batch to the last, and the CPU time that the process had
 * used before the first: it works for half a minute before it has read anything, and that is not held against it.
 */
public final class Kcl {
    private static final long CHECKPOINT_NANOS = 1_000_000_000L;
    private static final AtomicLong records = new AtomicLong();
    private static final AtomicLong bytes = new AtomicLong();
    private static final AtomicLong firstNanos = new AtomicLong();
    private static final CountDownLatch done = new CountDownLatch(1);
    private static volatile double cpuBeforeSeconds;
    private static volatile long lastNanos;
    private static long wanted;

    public static void main(String[] arguments) throws Exception {
        wanted = Long.parseLong(arguments[4]);
        long began = System.nanoTime();
        Thread thread = new Thread(scheduler(arguments[0], arguments[1], arguments[2], arguments[3]));
        thread.setDaemon(true);
        thread.start();
        done.await();
        System.out.printf(
                "{\"seconds\":%.3f,\"records\":%d,\"cpu_before_seconds\":%.3f,\"cpu_seconds\":%.3f,"
                        + "\"first_record_seconds\":%.3f,\"bytes\":%d}%n",
                (lastNanos - firstNanos.get()) / 1e9,
                records.get(),
                cpuBeforeSeconds,
                cpuSeconds(),
                (firstNanos.get() - began) / 1e9,
                bytes.get());
        // At once: an orderly end would be measured too.
        Runtime.getRuntime().halt(0);
    }

    private static Scheduler scheduler(String kinesisUrl, String dynamoUrl, String stream, String application) {
        var credentials = StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test"));
        KinesisAsyncClient kinesis =
                KinesisClientUtil.createKinesisAsyncClient(
                        KinesisAsyncClient.builder()
                                .region(Region.US_EAST_1)
                                .credentialsProvider(credentials)
                                .endpointOverride(URI.create(kinesisUrl)));
        DynamoDbAsyncClient dynamo =
                DynamoDbAsyncClient.builder()
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .endpointOverride(URI.create(dynamoUrl))
                        .build();
        // Asked for, and with metrics off never called.
        CloudWatchAsyncClient watch =
                CloudWatchAsyncClient.builder()
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .endpointOverride(URI.create("http://127.0.0.1:1"))
                        .build();
        ConfigsBuilder configs =
                new ConfigsBuilder(stream, application, kinesis, dynamo, watch, "bench", Visitor::new);
        var leases = configs.leaseManagementConfig();
        leases.workerUtilizationAwareAssignmentConfig().disableWorkerMetrics(true);
        // The largest pages and the shortest pauses that Kinesis allows.
        var polling = new PollingConfig(stream, kinesis).maxRecords(10_000).idleTimeBetweenReadsInMillis(200);
        var retrieval =
                configs.retrievalConfig()
                        .retrievalSpecificConfig(polling)
                        .initialPositionInStreamExtended(
                                InitialPositionInStreamExtended.newInitialPosition(
                                        InitialPositionInStream.TRIM_HORIZON));
        return new Scheduler(
                configs.checkpointConfig(),
                configs.coordinatorConfig(),
                leases,
                configs.lifecycleConfig(),
                configs.metricsConfig().metricsFactory(new NullMetricsFactory()).metricsLevel(MetricsLevel.NONE),
                configs.processorConfig(),
                retrieval);
    }

    private static double cpuSeconds() {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private static final class Visitor implements ShardRecordProcessor {
        private long checkpointNanos = System.nanoTime();

        @Override
        public void initialize(InitializationInput input) {}

        @Override
        public void processRecords(ProcessRecordsInput input) {
            if (firstNanos.compareAndSet(0, System.nanoTime())) {
                cpuBeforeSeconds = cpuSeconds();
            }
            for (KinesisClientRecord record : input.records()) {
                bytes.addAndGet(record.data().remaining());
            }
            if (System.nanoTime() - checkpointNanos > CHECKPOINT_NANOS) {
                checkpointNanos = System.nanoTime();
                try {
                    input.checkpointer().checkpoint();
                } catch (KinesisClientLibException error) {
                    System.err.println("checkpoint: " + error);
                }
            }
            if (records.addAndGet(input.records().size()) >= wanted) {
                lastNanos = System.nanoTime();
                done.countDown();
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {}

        @Override
        public void shardEnded(ShardEndedInput input) {}

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {}
    }
}
