// kafkajs against a broker: node kafkajs_client.js MODULES BROKER [TOPIC].  Prints one JSON object.
const path = require("path");
const zlib = require("zlib");
const { promisify } = require("util");

const [modules, broker, onlyTopic] = process.argv.slice(2);
const load = (name) => require(path.join(modules, "node_modules", name));
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = load("kafkajs");
const SnappyCodec = load("kafkajs-snappy");
const lz4 = load("lz4js");

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: (encoder) => promisify(zlib.zstdCompress)(encoder.buffer),
  decompress: (buffer) => promisify(zlib.zstdDecompress)(buffer),
});

const kafka = new Kafka({ clientId: "js", brokers: broker.split(","), logLevel: logLevel.NOTHING });
const admin = kafka.admin();
const group = {
  sessionTimeout: 6000,
  heartbeatInterval: 200,
  rebalanceTimeout: 10000,
  maxWaitTimeInMs: 200,
};

async function until(what, done, milliseconds = 25000) {
  const end = Date.now() + milliseconds;
  while (!done()) {
    if (Date.now() > end) throw new Error("timed out waiting for " + what);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function readAll(topic, groupId, count) {
  const consumer = kafka.consumer({ ...group, groupId });
  const values = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => values.push(message.value.toString()) });
  await until("the end of " + topic, () => values.length >= count);
  await consumer.disconnect();
  return values;
}

async function codecs() {
  const producer = kafka.producer();
  await producer.connect();
  const passed = [];
  const types = { None: 0, GZIP: 1, Snappy: 2, LZ4: 3, ZSTD: 4 };
  const work = Object.entries(types).map(async ([name, compression]) => {
    const topic = "js-" + name.toLowerCase();
    await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });
    const values = Array.from({ length: 200 }, (_, n) => String(n).padStart(100, "e"));
    await producer.send({ topic, compression, messages: values.map((value) => ({ value })) });
    const got = await readAll(topic, topic + "-g", values.length);
    if (JSON.stringify(got) === JSON.stringify(values)) passed.push(name);
  });
  await Promise.all(work);
  await producer.disconnect();
  return passed.sort();
}

async function sharing() {
  await admin.createTopics({ topics: [{ topic: "js-group", numPartitions: 4 }] });
  const held = {};
  const members = [0, 1].map(() => kafka.consumer({ ...group, groupId: "js-g" }));
  const start = async (index) => {
    const member = members[index];
    member.on(member.events.GROUP_JOIN, ({ payload }) => {
      held[index] = (payload.memberAssignment["js-group"] || []).length;
    });
    await member.connect();
    await member.subscribe({ topic: "js-group", fromBeginning: true });
    await member.run({ eachMessage: async () => {} });
  };
  await start(0);
  await until("all partitions", () => held[0] === 4);
  await start(1);
  await until("a fair share", () => held[0] === 2 && held[1] === 2);
  await members[1].disconnect();
  await until("the takeover", () => held[0] === 4);
  await members[0].disconnect();
  return true;
}

async function resuming() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  await admin.createTopics({ topics: [{ topic: "js-commit", numPartitions: 1 }] });
  const messages = Array.from({ length: 20 }, (_, n) => ({ value: String(n) }));
  await producer.send({ topic: "js-commit", messages });
  await producer.disconnect();
  const partitions = [{ partition: 0, offset: "12" }];
  await admin.setOffsets({ groupId: "js-c", topic: "js-commit", partitions });
  return (await readAll("js-commit", "js-c", 8))[0];
}

async function soon(holds) {
  for (let tries = 0; tries < 200; tries++) {
    if (await holds()) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}

async function administration() {
  const topic = "js-admin";
  await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] });
  const again = await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] });
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  // Of three brokers the others learn it a moment later.
  const partitions = async () =>
    (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length;
  await soon(async () => (await partitions()) === 3);
  const counted = await partitions();
  const offsets = await admin.fetchTopicOffsets("js-commit");
  const groups = (await admin.listGroups()).groups.map(({ groupId }) => groupId);
  await admin.deleteGroups(["js-c"]);
  await admin.deleteTopics({ topics: [topic] });
  const gone = await soon(async () => !(await admin.listTopics()).includes(topic));
  return {
    createdAgain: again,
    partitions: counted,
    high: offsets[0].high,
    listed: groups.includes("js-c"),
    gone,
  };
}

// Values, and how many answers it took to come to the end.
async function toTheEnd(topic) {
  const [end] = await admin.fetchTopicOffsets(topic);
  const consumer = kafka.consumer({ ...group, groupId: topic + "-g" });
  const values = [];
  let answers = 0;
  let position = 0;
  consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    answers += 1;
    position = Number(payload.lastOffset) + 1;
  });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => values.push(message.value.toString()) });
  await until("the end of " + topic, () => position >= Number(end.high));
  await consumer.disconnect();
  return { values, answers };
}

async function main() {
  await admin.connect();
  if (onlyTopic) {
    console.log(JSON.stringify(await toTheEnd(onlyTopic)));
    return admin.disconnect();
  }
  const [passed, shared, resumedAt] = await Promise.all([codecs(), sharing(), resuming()]);
  const result = { codecs: passed, shared, resumedAt, admin: await administration() };
  await admin.disconnect();
  console.log(JSON.stringify(result));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
