// Types of onnx-train for Node.js. Contracts of the functions are those of onnx_train.h.

/** Names of options as the command has them, in camelCase or with hyphens; an array gives an option several times. */
export type OptionValue = string | number | boolean | Array<string | number>;
export interface Options {
  [name: string]: OptionValue | undefined;
}

export type ElementType =
  | 'float32' | 'uint8' | 'int8' | 'uint16' | 'int16' | 'int32' | 'int64' | 'bool' | 'float16' | 'float64' | 'uint32'
  | 'uint64' | 'bfloat16';
/** float16 and bfloat16 are bits in a Uint16Array, bool is a Uint8Array of 0 and 1. */
export type Data =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array
  | BigInt64Array | BigUint64Array;
export type Status = 'ok' | 'usage' | 'file' | 'unsupported' | 'data' | 'memory' | 'device' | 'internal';
/** What a callback says; nothing is 'continue'. */
export type Next = 'continue' | 'stop' | 'interrupt' | void;
/** What the callback of generate() says; all but 'end-text' and false goes on. */
export type AfterToken = boolean | 'end-text' | void;
export type StopReason = 'finished' | 'interrupted' | 'early-stop' | 'time-limit' | 'stopped' | 'target';

/** A call failed: the message is the line that the command onnx-train prints. */
export class OnnxTrainError extends Error {
  readonly status: Status;
  /** "OT1001", which stays the same from version to version; "" for a failure without a code. */
  readonly code: string;
}

/** A tensor over a typed array, which the library reads in place: do not write to it or transfer it during a call. */
export class Tensor {
  constructor(data: Data, shape?: ArrayLike<number>, type?: ElementType);
  readonly type: ElementType;
  readonly shape: number[];
  readonly data: Data;
  /** Of those that the library gives. */
  readonly name?: string;
}

/** Tensors by name. A number is a float32 scalar. */
export interface Tensors {
  [name: string]: Tensor | number;
}

export interface Port {
  name: string;
  /** "learning_rate", "loss", "grad_norm", ...; "" for the model's own data. */
  role: string;
  of: string;
  type: ElementType;
  /** -1 for a size that the model leaves open; null where not even the rank is known. */
  shape: number[] | null;
  hasDefault: boolean;
}

export interface Finding {
  subject: string;
  what: string;
  advice: string;
}

export interface Report {
  text: string;
  loss: string;
  /** Why the model cannot be trained, in one line; "" when it can. */
  failure: string;
  obstacles: Finding[];
  findings: Finding[];
}

export interface Plan {
  text: string;
  json: string;
  arenaBytes: number;
  workspaceBytes: number;
  constantBytes: number;
}

export interface Step {
  step: number;
  epoch: number;
  samples: number;
  loss: number;
  learningRate: number;
  /** NaN where the model has none. */
  accuracy: number;
  gradNorm: number;
  seconds: number;
  lossScale: number;
  skipped: boolean;
  /** Of the samples; 0 of a model that reads no texts. */
  tokens: number;
  /**
   * What the step computes against what the machine can, about 0 to 1; NaN in the first ten seconds, of a model without
   * products and convolutions, and of several ranks on CPUs.
   */
  utilization: number;
}

export interface Evaluation {
  step: number;
  epoch: number;
  trainLoss: number;
  best: boolean;
  metrics: Record<string, number>;
  /** Copies of what metrics say by class. */
  tables: Tensor[];
}

/** Batches of the program. The first dimension of a batch is its number of samples; none or undefined ends an epoch. */
export interface Batches {
  next(): Tensors | undefined | Promise<Tensors | undefined>;
  begin?(epoch: number): void | Promise<void>;
  /** Of an epoch, for schedules that need an end. */
  batches?: number;
}
export type DataSource = Tensors | Dataset | Batches;

/**
 * Functions of the program, on JavaScript's thread, while the training waits for what they return or promise. What they
 * throw ends the training, and the call throws it. They may use the session, and
 * await what they call.
 */
export interface Callbacks {
  evaluation?: DataSource;
  onStep?(step: Step): Next | Promise<Next>;
  onEvaluation?(evaluation: Evaluation): Next | Promise<Next>;
  onCheckpoint?(path: string): Next | Promise<Next>;
  onNote?(text: string): void | Promise<void>;
}

/** A forward model, a training model or a checkpoint. */
export class Model {
  private constructor();
  static load(path: string): Promise<Model>;
  static fromBytes(bytes: Uint8Array): Promise<Model>;
  save(path: string): Promise<void>;
  toBytes(): Promise<Buffer>;
  readonly metadata: Record<string, string>;
  readonly notes: Finding[];
  build(options?: Options): Promise<Model>;
  buildWithLoss(loss: Model, options?: Options): Promise<Model>;
  /** For a path of data files, or arrays, which choose the loss if the options have none. */
  buildForData(data: string | Tensors, options?: Options): Promise<{ model: Model; note: string }>;
  sizes(arrays: Tensors): string;
  check(options?: Options): Promise<Report>;
  export(options?: Options): Promise<Model>;
  /**
   * Writes the model or the folder of the option "into" with trained weights to `path`; gives what was written, guessed or
   * left out, in lines.
   */
  exportInto(path: string, options: Options): Promise<string>;
  saveAdapter(folder: string): Promise<void>;
  flatten(entry: string): Promise<Model>;
  differentiate(options?: Options): Promise<{ forward: Model; backward: Model }>;
  derivative(kind: 'outputs' | 'gradient' | 'vjp' | 'jvp' | 'hvp', options?: Options, loss?: Model): Promise<Model>;
  withWeights(weights: Tensors, strict?: boolean): Promise<Model>;
  close(): void;
}

/** Outputs in the session's memory: their arrays are empty after its next call. */
export class Outputs implements Iterable<Tensor> {
  private constructor();
  readonly tensors: Tensor[];
  /** By name, or by role: "loss". */
  get(name: string): Tensor;
  scalar(name: string): number | bigint;
  [Symbol.iterator](): Iterator<Tensor>;
}

/**
 * A training model's state on a device. One call at a time: one before the last has ended throws. Promises are of calls on
 * a thread of libuv's pool, of which there are four, or UV_THREADPOOL_SIZE.
 */
export class Session {
  private constructor();
  static create(training: Model, options?: Options): Promise<Session>;
  run(entry: string, inputs?: Tensors): Promise<Outputs>;
  runSync(entry: string, inputs?: Tensors): Outputs;
  fit(training: DataSource, options?: Options, callbacks?: Callbacks): Promise<StopReason>;
  evaluate(data: DataSource, options?: Options, callbacks?: Pick<Callbacks, 'onNote'>): Promise<Record<string, number>>;
  predict(data: Tensors | Dataset, options?: Options, callbacks?: Pick<Callbacks, 'onNote'>): Promise<Outputs>;
  /** onToken returns 'end-text' to complete this text, false to end all. */
  generate(prompts: number[][], options?: Options, onToken?: (text: number, token: number) => AfterToken | Promise<AfterToken>): Promise<number[][]>;
  readonly generateNote: string;
  metrics(statistics: Tensors): Record<string, number>;
  metricTables(): Outputs;
  readonly entries: string[];
  inputPorts(entry: string): Port[];
  outputPorts(entry: string): Port[];
  readonly statePorts: Port[];
  readonly states: string[];
  plan(entry: string, options?: Options): Plan;
  scale(input: string): number;
  sampleAxis(entry: string, input: string): number;
  /** A copy of a state. */
  get(name: string): Tensor;
  set(name: string, value: Tensor): void;
  /** A state where the session keeps it, without a copy; empty after close(). */
  data(name: string): Tensor;
  readonly device: { type: number; id: number; stream: bigint };
  readonly rank: number;
  readonly ranks: number;
  swap(name: string, other: Session): void;
  loadAdapter(name: string, folder: string): Promise<void>;
  setAdapter(name: string): void;
  initialize(seed: number): Promise<void>;
  model(): Promise<Model>;
  /** Frees the session, after the call that it works at; another call throws at once. */
  close(): void;
}

/** Data files, as the command's --data takes them. */
export class Dataset {
  private constructor();
  /** What an entry point of the session takes [that which trains]; without a session all arrays of a .npz or .npy. */
  static open(path: string, session?: Session | null, options?: Options & { entry?: string }): Promise<Dataset>;
  static openSafetensors(path: string): Promise<Dataset>;
  static saveSafetensors(path: string, tensors: Tensors, metadata?: Record<string, string>): Promise<void>;
  /** Copies of the arrays. */
  tensors(): Tensor[];
  readonly samples: number;
  batchesOf(batchSize: number): number;
  readonly metadata: Record<string, string>;
  close(): void;
}

export const version: string;
/** The options of "build", "session", "fit", "data" and others, as onnx_train_options lists them, a line each. */
export function options(of: string): string;
export function learningRate(step: number, options?: Options): number;
export function split(samples: number, options?: Options): { training: number[]; evaluation: number[] };
