// Types of onnx-train-web. docs/other_runtimes.md says how it is used.

export type ElementType =
  | 'float32' | 'uint8' | 'int8' | 'uint16' | 'int16' | 'int32' | 'int64' | 'bool' | 'float16' | 'float64' | 'uint32' | 'uint64';
/** float16 are bits in a Uint16Array, bool is a Uint8Array of 0 and 1. */
export type Data =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Int16Array | Uint16Array | Int32Array | Uint32Array
  | BigInt64Array | BigUint64Array;

export interface NamedTensor {
  type: ElementType;
  dims: number[];
  data: Data;
}
export type Tensors = Record<string, NamedTensor>;

/** What was wrong, in one line. */
export class OnnxTrainError extends Error {
  readonly kind: 'usage' | 'file' | 'unsupported' | 'data';
}

/** A number, elements whose sizes follow from their count where at most one is open, or elements with their sizes. An
 * `ort.Tensor` of the input's type is taken as it is. */
export type Value =
  | number | bigint | ArrayLike<number | bigint | boolean> | { dims: readonly number[]; data: ArrayLike<number | bigint | boolean> };
export type Batch = Record<string, Value>;

/** Scalars are numbers. */
export type Results = Record<string, number | NamedTensor>;
export interface TrainingResults {
  loss: number;
  /** Over how many labels, or what else counts, the mean is; losses that sum have none. */
  loss_count?: number;
  accuracy?: number;
  accuracy_count?: number;
  /** The norm of all gradients before they are clipped. */
  grad_norm?: number;
  [name: string]: number | NamedTensor | undefined;
}

export interface StepOptions {
  /** The learning rate of this step; by default that of the optimizer as built. */
  lr?: number;
  /** The norm at which this step clips its gradients. */
  clipNorm?: number;
}

export interface Port {
  name: string;
  type: ElementType;
  /** Sizes that the model leaves open are names; null where the rank is open. */
  dims: Array<number | string> | null;
  /** What it is for, such as 'learning_rate' or 'exp_avg'; '' for data, weights and statistics. */
  role: string;
}

export interface SessionOptions {
  /** The module onnxruntime-web; by default what an import of 'onnxruntime-web' gives. */
  ort?: unknown;
  /** Update the state with a loss that is NaN or infinite, too; by default an error. */
  allowNonFinite?: boolean;
  /** Those of ort.InferenceSession.create: executionProviders, graphOptimizationLevel, ... */
  [option: string]: unknown;
}

export interface Round {
  /** What the steps added to each weight of floats: a file of safetensors. */
  difference: Uint8Array;
  steps: number;
  samples: number;
  /** The mean over all samples; NaN where there were none. */
  loss: number;
}

/** The state of a training model, and the runs of its entry points by onnxruntime-web. A run that fails leaves the state as it
 * was. A session does one thing at a time: await a call before the next one. Every promise is rejected with OnnxTrainError. */
export class Session {
  private constructor();
  /** Of a training model or a checkpoint: its bytes, or the address of the file. */
  static create(source: string | URL | ArrayBuffer | ArrayBufferView, options?: SessionOptions): Promise<Session>;

  /** 'predict', 'step', 'evaluate', ... */
  readonly entries: string[];
  readonly states: Port[];
  inputs(entry: string): Port[];

  run(entry: string, inputs: Batch): Promise<Results>;
  step(batch: Batch, options?: StepOptions): Promise<TrainingResults>;
  /** Adds the gradients of a batch to those since the last apply, of a model that was built with --accumulate. */
  accumulate(batch: Batch): Promise<TrainingResults>;
  apply(options?: StepOptions): Promise<Results>;
  evaluate(batch: Batch): Promise<TrainingResults>;
  predict(batch: Batch): Promise<Results>;

  /** A copy. */
  state(name: string): Promise<NamedTensor>;
  setState(name: string, value: Value): void;
  weights(): Promise<Tensors>;
  /** The weights as a file of safetensors. */
  saveWeights(): Promise<Uint8Array>;
  /** Takes over the weights of such a file; gives their names. */
  loadWeights(file: ArrayBuffer | ArrayBufferView): string[];
  /** The training model with the present state, as a file. */
  checkpoint(): Promise<Uint8Array>;
  /** The inference model with the present weights, as a file. */
  export(): Promise<Uint8Array>;

  /** Takes over `weights`, a file of safetensors, and makes a step of each batch. */
  federatedRound(
    weights: ArrayBuffer | ArrayBufferView, batches: Iterable<Batch> | AsyncIterable<Batch>, options?: StepOptions): Promise<Round>;

  /** Frees the memory of the runtime; the session is of no use after it. */
  release(): Promise<void>;
}

export function readSafetensors(file: ArrayBuffer | ArrayBufferView): Tensors;
export function writeSafetensors(tensors: Tensors): Uint8Array;
