// Training in a browser: the entry points of a training model, run by onnxruntime-web.
import { OnnxTrainError } from './error.js';
import { TrainingModel } from './model.js';
import { arrayOf, asBytes, readSafetensors, sizeOf, writeSafetensors } from './tensors.js';

// Types of states that WebGPU keeps in buffers of its own between steps; others are counters and keys, of a few bytes.
const ON_GPU = new Set(['float32', 'float16']);

// The state of a training model, and the sessions of `ort`, the module onnxruntime-web, that run its entry points. A run reads
// one set of tensors and gives another one, which takes its place when the run has succeeded: a run that fails changes nothing.
export class Session {
  #ort;
  #options;
  #model;
  #allowNonFinite;
  #state = new Map();  // name -> ort.Tensor
  #runs = new Map();   // entry point -> promise of { session, inputs, ... }
  #busy = false;
  #released = false;

  // A session of a training model or a checkpoint: its bytes, or the address of the file. `options` besides `ort` and
  // `allowNonFinite` are those of ort.InferenceSession.create, such as executionProviders.
  static async create(source, { ort, allowNonFinite = false, ...options } = {}) {
    const runtime = ort ?? (await import('onnxruntime-web').catch((error) => {
      const how = "give it as `ort`, or an import map that names 'onnxruntime-web'";
      throw new OnnxTrainError('usage', `onnxruntime-web is not there: ${how} (${error.message})`, { cause: error });
    }));
    const isAddress = typeof source === 'string' || source instanceof URL;
    const model = new TrainingModel(isAddress ? await fetchBytes(source) : asBytes(source).slice());
    return new Session(model, runtime, allowNonFinite, options);
  }

  // Not for callers, who have `create`.
  constructor(model, ort, allowNonFinite, options) {
    this.#model = model;
    this.#ort = ort;
    this.#options = options;
    this.#allowNonFinite = allowNonFinite;
    for (const name of model.states) this.#state.set(name, this.#tensor(read(model.initializers.get(name))));
  }

  // The names of the entry points.
  get entries() {
    return ['predict', ...this.#model.entries.keys()];
  }

  // The states: { name, type, dims, role }; weights and statistics of batch norm have the role ''.
  get states() {
    return this.#model.states.map((name) => {
      const { type, dims, role } = this.#model.initializers.get(name);
      return { name, type, dims: [...dims], role };
    });
  }

  // What an entry point takes: { name, type, dims, role }. Sizes that the model leaves open are names.
  inputs(entry) {
    return this.#model.flatten(entry).inputs.map(({ name, type, dims, role }) => ({ name, type, dims, role }));
  }

  // Runs an entry point and takes over the states that it gives. Resolves to its results by role or name; scalars are numbers.
  async run(entry, inputs) {
    return this.#alone(async () => {
      const run = await this.#prepared(entry);
      const feeds = this.#feeds(entry, run, inputs);
      let found;
      try {
        found = await run.session.run(feeds);
      } catch (error) {
        throw new OnnxTrainError('data', `entry point '${entry}' on ONNX Runtime: ${error.message ?? error}`, { cause: error });
      }
      const results = {};
      for (const { name, role } of run.results) results[role || name] = await resultOf(found[name]);
      const isScaled = run.results.some(({ role }) => role === 'loss_scale');
      const fault = run.updates.length > 0 && !isScaled && !this.#allowNonFinite ? faultOf(entry, results) : null;
      if (fault) {
        for (const [output] of run.updates) found[output].dispose?.();
        throw fault;
      }
      for (const [output, state] of run.updates) {
        this.#state.get(state).dispose?.();
        this.#state.set(state, found[output]);
      }
      return results;
    });
  }

  // One step of training on a batch: arrays by name. Resolves to { loss, grad_norm, accuracy, ... }.
  step(batch, options) {
    return this.#runWith('step', batch, options);
  }

  // Adds the gradients of a batch to those since the last apply, of a model that was built with --accumulate.
  accumulate(batch) {
    return this.#runWith('accumulate', batch);
  }

  apply(options) {
    return this.#runWith('apply', {}, options);
  }

  // Loss and metrics of a batch in inference mode.
  evaluate(batch) {
    return this.#runWith('evaluate', batch);
  }

  // The outputs of the network: { type, dims, data } by name.
  predict(batch) {
    return this.#runWith('predict', batch);
  }

  async #runWith(entry, batch, { lr, clipNorm } = {}) {
    const { inputs } = await this.#prepared(entry);
    const given = { ...batch };
    for (const [role, value, option] of [['learning_rate', lr, 'lr'], ['clip_norm', clipNorm, 'clipNorm']]) {
      if (value === undefined) continue;
      const input = inputs.find((known) => known.role === role);
      if (!input) throw new OnnxTrainError('usage', `entry point '${entry}' takes no ${option}`);
      given[input.name] = value;
    }
    return this.run(entry, given);
  }

  // A copy of a state: { type, dims, data }.
  async state(name) {
    const tensor = this.#state.get(name);
    if (!tensor) throw new OnnxTrainError('usage', `the model has no state '${name}'`);
    return copyOf(tensor);
  }

  // Gives a state another value: { dims, data }, or the elements alone.
  setState(name, value) {
    const known = this.#model.initializers.get(name);
    if (!this.#state.has(name)) throw new OnnxTrainError('usage', `the model has no state '${name}'`);
    if (this.#busy) throw busy();
    const tensor = this.#converted(name, { ...known, name }, value);
    this.#state.get(name).dispose?.();
    this.#state.set(name, tensor);
  }

  // The weights, and statistics of batch norm, by name: { type, dims, data }.
  async weights() {
    const names = this.states.filter(({ role }) => role === '').map(({ name }) => name);
    return this.#copies(names);
  }

  // The weights as a file of safetensors, which onnx_train.load_weights and many other programs read.
  async saveWeights() {
    return writeSafetensors(await this.weights());
  }

  // Takes over the weights of a file of safetensors. All names and shapes are looked at before the first one is changed.
  loadWeights(file) {
    const tensors = readSafetensors(file);
    const states = new Map(this.states.map((state) => [state.name, state]));
    for (const [name, { type, dims }] of Object.entries(tensors)) {
      const state = states.get(name);
      if (!state) throw new OnnxTrainError('data', `the model has no state '${name}'`);
      if (state.type !== type || String(state.dims) !== String(dims)) {
        throw new OnnxTrainError('data', `'${name}' is ${type}[${dims}]; the state is ${state.type}[${state.dims}]`);
      }
    }
    for (const [name, tensor] of Object.entries(tensors)) this.setState(name, tensor);
    return Object.keys(tensors);
  }

  // The training model with the present state, as a file: what this package, onnx_train and its command go on with.
  async checkpoint() {
    return this.#alone(async () => this.#model.with(await this.#copies(this.#model.states)));
  }

  // The inference model with the present weights, as a file.
  async export() {
    return this.#alone(async () => this.#model.inference(await this.#copies(this.#model.states)));
  }

  // A client's part of a round of federated training: takes over `weights`, a file of safetensors, makes a step of each batch of
  // `batches`, an iterable that may be asynchronous, and resolves to { difference, steps, samples, loss }: what the steps added
  // to each weight of floats, as a file of safetensors, how many samples they had, and the mean loss over them. The optimizer's
  // state stays here, and goes on in the next round.
  async federatedRound(weights, batches, options) {
    this.loadWeights(weights);
    const before = await this.weights();
    let steps = 0, samples = 0, sum = 0;
    for await (const batch of batches) {
      const { loss } = await this.step(batch, options);
      const size = samplesOf((await this.#prepared('step')).inputs, batch);
      steps += 1;
      samples += size;
      sum += loss * size;
    }
    const difference = {};
    for (const [name, { type, dims, data }] of Object.entries(await this.weights())) {
      if (type !== 'float32' && type !== 'float64') continue;
      difference[name] = { type, dims, data: data.map((value, i) => value - before[name].data[i]) };
    }
    return { difference: writeSafetensors(difference), steps, samples, loss: samples > 0 ? sum / samples : NaN };
  }

  // Frees the memory of the runtime. The session is of no use after it.
  async release() {
    if (this.#busy) throw busy();
    this.#released = true;
    for (const tensor of this.#state.values()) tensor.dispose?.();
    const runs = await Promise.allSettled(this.#runs.values());
    this.#runs.clear();
    for (const { value } of runs) await value?.session.release?.();
  }

  async #alone(work) {
    if (this.#released) throw new OnnxTrainError('usage', 'the session has been released');
    if (this.#busy) throw busy();
    this.#busy = true;
    try {
      return await work();
    } finally {
      this.#busy = false;
    }
  }

  #prepared(entry) {
    if (!this.#runs.has(entry)) {
      const prepared = this.#prepare(entry);
      this.#runs.set(entry, prepared);
      prepared.catch(() => this.#runs.delete(entry));
    }
    return this.#runs.get(entry);
  }

  async #prepare(entry) {
    const { bytes, ...run } = this.#model.flatten(entry);
    const options = { ...this.#options };
    if (await usesGpu(options)) {
      const types = this.#model.initializers;
      const places = run.updates.filter(([, state]) => ON_GPU.has(types.get(state).type)).map(([output]) => [output, 'gpu-buffer']);
      const others = run.updates.filter(([, state]) => !ON_GPU.has(types.get(state).type)).map(([output]) => [output, 'cpu']);
      const results = run.results.map(({ name }) => [name, 'cpu']);
      options.preferredOutputLocation = Object.fromEntries([...places, ...others, ...results]);
    }
    try {
      return { ...run, session: await this.#ort.InferenceSession.create(bytes, options) };
    } catch (error) {
      throw new OnnxTrainError('unsupported', `ONNX Runtime refuses the entry point '${entry}': ${error.message ?? error}`, { cause: error });
    }
  }

  #feeds(entry, run, given) {
    const known = new Map(run.inputs.map((input) => [input.name, input]));
    for (const name of Object.keys(given)) {
      if (!known.has(name)) {
        throw new OnnxTrainError('data', `entry point '${entry}' has no input '${name}'; it has ${[...known.keys()].join(', ')}`);
      }
    }
    const feeds = {};
    for (const [name, input] of known) {
      const value = given[name] ?? (input.default && read(input.default));
      if (value === undefined) {
        throw new OnnxTrainError('data', `entry point '${entry}': the input '${name}', ${input.type}[${input.dims}], is missing`);
      }
      feeds[name] = this.#converted(name, input, value);
    }
    for (const name of run.states) feeds[name] = this.#state.get(name);
    return feeds;
  }

  // An ort.Tensor of what a caller gives: a tensor, { dims, data }, elements of one open dimension, or a number.
  #converted(name, { type, dims }, value) {
    const own = value?.dims ?? shapeOf(name, dims, value);
    const isKnown = dims === null || (dims.length === own.length && dims.every((size, i) => typeof size !== 'number' || size === own[i]));
    if (!isKnown) throw new OnnxTrainError('data', `'${name}' has the shape [${own}]; it must be [${dims}]`);
    if (value instanceof this.#ort.Tensor && value.type === type) return value;
    const data = converted(name, type, value?.data ?? value);
    if (data.length !== sizeOf(own)) {
      throw new OnnxTrainError('data', `'${name}' has ${data.length} elements; its shape is [${own}]`);
    }
    return this.#tensor({ type, dims: own, data });
  }

  #tensor({ type, dims, data }) {
    return new this.#ort.Tensor(type, data, dims);
  }

  async #copies(names) {
    const copies = {};
    for (const name of names) copies[name] = await copyOf(this.#state.get(name));
    return copies;
  }
}

function busy() {
  return new OnnxTrainError('usage', 'the session is at work; await what it does, or make another one');
}

async function fetchBytes(address) {
  const answer = await fetch(address).catch((error) => {
    throw new OnnxTrainError('file', `${address}: ${error.message}`, { cause: error });
  });
  if (!answer.ok) throw new OnnxTrainError('file', `${address}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
}

// Whether WebGPU is asked for and there; where it is not, onnxruntime-web goes on with the next provider.
async function usesGpu({ executionProviders = [] }) {
  const isAsked = executionProviders.some((provider) => (provider?.name ?? provider) === 'webgpu');
  return isAsked && Boolean(await globalThis.navigator?.gpu?.requestAdapter());
}

const read = (tensor) => ({ type: tensor.type, dims: tensor.dims, data: tensor.data() });

async function copyOf(tensor) {
  const data = tensor.location && !tensor.location.startsWith('cpu') ? await tensor.getData() : tensor.data;
  return { type: tensor.type, dims: [...tensor.dims], data: data.slice() };
}

async function resultOf(tensor) {
  const copy = await copyOf(tensor);
  const isNumber = copy.dims.length === 0 && copy.type !== 'float16';
  return isNumber ? Number(copy.data[0]) : copy;
}

// The sizes of an array without: they follow from its length where at most one dimension is open.
function shapeOf(name, dims, value) {
  const length = typeof value === 'number' || typeof value === 'bigint' ? 1 : value?.length;
  if (length === undefined || typeof value === 'string') throw new OnnxTrainError('data', `'${name}' is no array of numbers`);
  const open = dims?.filter((size) => typeof size !== 'number').length;
  const known = sizeOf(dims?.filter((size) => typeof size === 'number') ?? []);
  if (dims === null || open > 1 || (open === 1 && (known === 0 || length % known !== 0))) {
    throw new OnnxTrainError('data', `'${name}' has the shape [${dims ?? '?'}]: give { dims, data }`);
  }
  return dims.map((size) => (typeof size === 'number' ? size : length / known));
}

function converted(name, type, data) {
  const Kind = arrayOf(type);
  if (data instanceof Kind) return data;
  const numbers = typeof data === 'number' || typeof data === 'bigint' ? [data] : data;
  const isBig = Kind === BigInt64Array || Kind === BigUint64Array;
  try {
    if (type === 'float16') throw new TypeError('float16 are bits in a Uint16Array');
    const isFloat = Kind === Float32Array || Kind === Float64Array;
    return Kind.from(numbers, (number) => {
      if (!['number', 'bigint', 'boolean'].includes(typeof number)) throw new TypeError(`${number} is no number`);
      if (!isFloat && !Number.isInteger(Number(number))) throw new TypeError(`${number} is no whole number`);
      return isBig ? BigInt(number) : Number(number);
    });
  } catch (error) {
    throw new OnnxTrainError('data', `'${name}' must be ${type}: ${error.message}`, { cause: error });
  }
}

// What is wrong with a run whose loss or gradients are not finite, else null.
function faultOf(entry, { loss, grad_norm: norm }) {
  for (const [what, number] of [['the loss', loss], ['the norm of the gradients', norm]]) {
    if (number === undefined || Number.isFinite(number)) continue;
    const found = Number.isNaN(number) ? 'NaN' : 'infinite';
    return new OnnxTrainError('data', `entry point '${entry}': ${what} is ${found}; no weight is changed: look at the inputs and the learning rate`);
  }
  return null;
}

// The first size of the first input of data.
function samplesOf(inputs, batch) {
  const { name, dims } = inputs.find((input) => input.role === '');
  return (batch[name].dims ?? shapeOf(name, dims, batch[name]))[0];
}
