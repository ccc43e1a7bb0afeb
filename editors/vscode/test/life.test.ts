import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Life, type Running } from "../src/life";

/** One that runs, answers when it is told to, and notes what happens to it. */
class One implements Running {
  answer!: () => void;
  fail!: (error: Error) => void;
  readonly ready = new Promise<void>((resolve, reject) => {
    this.answer = resolve;
    this.fail = reject;
  });
  isStopped = false;

  constructor(
    readonly name: string,
    readonly ended: () => void,
    private readonly stopMs: number,
  ) {}

  async stop(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, this.stopMs));
    this.isStopped = true;
  }
}

let all: One[];
let events: string[];
let life: Life<One>;

const begin =
  (name: string, stopMs = 0) =>
  (ended: () => void) => {
    expect(all.filter((one) => !one.isStopped)).toEqual([]); // one at a time
    const one = new One(name, ended, stopMs);
    all.push(one);
    return one;
  };
const settle = () => vi.advanceTimersByTimeAsync(1);
const last = () => all[all.length - 1]!;

beforeEach(() => {
  vi.useFakeTimers();
  all = [];
  events = [];
  life = new Life<One>({
    begun: () => events.push("begun"),
    answers: (one) => events.push(`answers ${one.name}`),
    gone: () => events.push("gone"),
    lost: (why, waitMs) => events.push(`${why} ${waitMs}`),
  });
});
afterEach(() => vi.useRealTimers());

it("starts and stops", async () => {
  const started = life.start(begin("a"));
  await settle();
  expect(life.active).toBeUndefined();
  last().answer();
  await started;
  expect(life.active?.name).toBe("a");
  const stopped = life.stop();
  await settle();
  await stopped;
  expect(life.active).toBeUndefined();
  expect(last().isStopped).toBe(true);
  expect(events).toEqual(["begun", "answers a", "gone"]);
});

it("begins again what ended by itself, later each time", async () => {
  void life.start(begin("a"));
  for (const wait of [500, 1000]) {
    await settle();
    last().answer();
    await settle();
    last().ended();
    expect(events.splice(0)).toEqual(["begun", "answers a", "gone", `ended. ${wait}`]);
    await vi.advanceTimersByTimeAsync(wait - 2);
    expect(events).toEqual([]);
    await vi.advanceTimersByTimeAsync(2);
  }
  expect(all.length).toBe(3);
});

it("begins again what did not start", async () => {
  void life.start(begin("a"));
  await settle();
  last().fail(new Error("no"));
  await settle();
  expect(events).toEqual(["begun", "could not be started: Error: no. 500"]);
  await vi.advanceTimersByTimeAsync(500);
  expect(all.length).toBe(2);
});

it("begins again one that never answers, later each time", async () => {
  void life.start(begin("a"));
  for (const wait of [500, 1000]) {
    await vi.advanceTimersByTimeAsync(59_900);
    expect(events).toEqual(["begun"]);
    await vi.advanceTimersByTimeAsync(101);
    const why = "could not be started: Error: there was no answer in 60 s.";
    expect(events.splice(0)).toEqual(["begun", `${why} ${wait}`]);
    expect(last().isStopped).toBe(true);
    last().answer(); // too late
    await vi.advanceTimersByTimeAsync(wait - 1);
  }
  expect(all.length).toBe(3);
  expect(life.active).toBeUndefined();
});

it("begins again what could not even be begun", async () => {
  void life.start(() => {
    throw new Error("no");
  });
  await settle();
  expect(events).toEqual(["begun", "could not be started: Error: no. 500"]);
});

it("does not wait for one that never answers", async () => {
  void life.start(begin("a"));
  await settle();
  const started = life.start(begin("b"));
  await settle();
  expect(all.map((one) => [one.name, one.isStopped])).toEqual([
    ["a", true],
    ["b", false],
  ]);
  all[0]!.answer(); // too late
  await settle();
  expect(life.active).toBeUndefined();
  last().answer();
  await started;
  expect(life.active?.name).toBe("b");
  expect(events).toEqual(["begun", "begun", "answers b"]);
});

it("takes no notice of how one fails that was given up", async () => {
  void life.start(begin("a", 100));
  await settle();
  void life.start(begin("b"));
  await settle();
  all[0]!.fail(new Error("killed"));
  await vi.advanceTimersByTimeAsync(200);
  last().answer();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(life.active?.name).toBe("b");
  expect(events).toEqual(["begun", "begun", "answers b"]);
});

it("starts the last of several at once, and one at a time", async () => {
  void life.start(begin("a", 50));
  void life.start(begin("b", 50));
  void life.start(begin("c", 50));
  await vi.advanceTimersByTimeAsync(1000);
  last().answer();
  await settle();
  expect(life.active?.name).toBe("c");
  expect(all.filter((one) => !one.isStopped).map((one) => one.name)).toEqual(["c"]);
});

it("stops amid a start", async () => {
  void life.start(begin("a"));
  await settle();
  const stopped = life.stop();
  await settle();
  await stopped;
  await vi.advanceTimersByTimeAsync(60_000);
  expect(all.map((one) => one.isStopped)).toEqual([true]);
  expect(events).toEqual(["begun"]);
});

it("stops while it waits to begin again", async () => {
  void life.start(begin("a"));
  await settle();
  last().fail(new Error("no"));
  await settle();
  await life.stop();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(all.length).toBe(1);
});

it("starts at once what is asked for while it waits to begin again", async () => {
  void life.start(begin("a"));
  await settle();
  last().fail(new Error("no"));
  await settle();
  void life.start(begin("b"));
  await settle();
  last().answer();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(all.map((one) => one.name)).toEqual(["a", "b"]);
  expect(life.active?.name).toBe("b");
});

it("stops what refuses to, and goes on", async () => {
  void life.start((ended) => {
    const one = begin("a")(ended);
    one.stop = async () => {
      one.isStopped = true;
      throw new Error("no");
    };
    return one;
  });
  await settle();
  last().answer();
  await settle();
  void life.start(begin("b"));
  await settle();
  last().answer();
  await settle();
  expect(life.active?.name).toBe("b");
});
