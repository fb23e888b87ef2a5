// kafka-clients against a broker: java JavaClient.java BROKER [TOPIC].  Prints "passed" lines, or the topic.
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

public class JavaClient {
    static final Duration POLL = Duration.ofMillis(100);
    static final long SECONDS_MAX = 30;
    static String broker;

    static Producer<String, String> producer(String codec) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", broker);
        settings.put("compression.type", codec);
        settings.put("linger.ms", 20);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static Consumer<String, String> consumer(String group, String protocol) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", broker);
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 200);
        }
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void until(Callable<Boolean> done, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        while (!done.call()) check(System.nanoTime() < end, "timed out: " + what);
    }

    static void codec(String codec) throws Exception {
        String topic = "java-" + codec;
        List<String> values = new ArrayList<>();
        try (Producer<String, String> producer = producer(codec)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int n = 0; n < 500; n++) {
                values.add(String.format("%06d", n) + "f".repeat(94));
                sent.add(producer.send(new ProducerRecord<>(topic, 0, "k", values.get(n))));
            }
            for (int n = 0; n < 500; n++) check(sent.get(n).get().offset() == n, "offset " + n);
        }
        check(toTheEnd(topic).equals(values), "values of " + topic);
        System.out.println("passed codec " + codec);
    }

    static List<String> toTheEnd(String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        List<String> got = new ArrayList<>();
        try (Consumer<String, String> consumer = consumer("nobody", "classic")) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            until(() -> {
                consumer.poll(POLL).forEach(record -> got.add(record.value()));
                return consumer.position(place) >= end;
            }, "the end of " + topic);
        }
        return got;
    }

    static void group(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("java-group", 4, (short) 1))).all().get();
        try (Consumer<String, String> first = consumer("java-g", "classic")) {
            first.subscribe(List.of("java-group"));
            until(() -> {
                first.poll(POLL);
                return first.assignment().size() == 4;
            }, "all partitions");
            try (Consumer<String, String> second = consumer("java-g", "classic")) {
                second.subscribe(List.of("java-group"));
                until(() -> {
                    first.poll(POLL);
                    second.poll(POLL);
                    return first.assignment().size() == 2 && second.assignment().size() == 2;
                }, "a fair share");
            }
            until(() -> {
                first.poll(POLL);
                return first.assignment().size() == 4;
            }, "the takeover");
        }
        System.out.println("passed group");
    }

    static void resume() throws Exception {
        TopicPartition place = new TopicPartition("java-none", 0);
        try (Consumer<String, String> first = consumer("java-c", "classic")) {
            first.subscribe(List.of("java-none"));
            until(() -> !first.poll(POLL).isEmpty(), "records");
            first.commitSync(Map.of(place, new OffsetAndMetadata(123, "note")));
        }
        try (Consumer<String, String> second = consumer("java-c", "classic")) {
            second.subscribe(List.of("java-none"));
            List<Long> offsets = new ArrayList<>();
            until(() -> {
                second.poll(POLL).forEach(record -> offsets.add(record.offset()));
                return !offsets.isEmpty();
            }, "records");
            check(offsets.get(0) == 123, "resumed at " + offsets.get(0));
            check(second.committed(Set.of(place)).get(place).metadata().equals("note"), "note");
        }
        System.out.println("passed resume");
    }

    static void administration(Admin admin) throws Exception {
        String topic = "java-admin";
        admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(
            new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        // Of three brokers the others learn it a moment later.
        until(() -> {
            Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            ConfigEntry entry = config.get("retention.ms");
            return entry != null && entry.value().equals("7200000");
        }, "retention");
        int brokers = admin.describeCluster().nodes().get().size();
        check(brokers == 1 || brokers == 3, "cluster of " + brokers);
        until(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
            .partitions().size() == 3, "partitions");
        TopicPartition place = new TopicPartition("java-gzip", 0);
        admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(100))).all().get();
        long start = admin.listOffsets(Map.of(place, OffsetSpec.earliest()))
            .partitionResult(place).get().offset();
        check(start == 100, "start " + start);
        check(admin.listGroups().all().get().stream()
            .anyMatch(group -> group.groupId().equals("java-c")), "listed group");
        check(admin.describeClassicGroups(List.of("java-c")).all().get().containsKey("java-c"),
            "described group");
        admin.deleteConsumerGroups(List.of("java-c")).all().get();
        admin.deleteTopics(List.of(topic)).all().get();
        until(() -> !admin.listTopics().names().get().contains(topic), "deleted topic");
        System.out.println("passed admin");
    }

    static void newProtocol() throws Exception {
        try (Consumer<String, String> consumer = consumer("java-new", "consumer")) {
            consumer.subscribe(List.of("java-none"));
            until(() -> {
                consumer.poll(POLL);
                return false;
            }, "the refusal");
        } catch (org.apache.kafka.common.errors.UnsupportedVersionException refused) {
            check(refused.getMessage().contains("classic"), refused.getMessage());
            System.out.println("passed refusal of group.protocol=consumer");
        }
    }

    public static void main(String[] arguments) throws Exception {
        broker = arguments[0];
        if (arguments.length > 1) {
            toTheEnd(arguments[1]).forEach(System.out::println);
            return;
        }
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", broker))) {
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) codec(codec);
            group(admin);
            resume();
            administration(admin);
            newProtocol();
        }
    }
}
