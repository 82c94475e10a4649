'use strict';
// onnx-train for Node.js: classes over the addon of src/, which calls the C interface. index.d.ts has the types.

const { OnnxTrainError, Tensor, addon, options, ports, tensorOf, tensors } = require('./values.js');

const REASONS = ['finished', 'interrupted', 'early-stop', 'time-limit', 'stopped', 'target'];
const NEXT = { continue: 0, stop: 1, interrupt: 2 };
const FAIL = 3;
const END_TEXT = 4;

const SECRET = Symbol('of the library');  // constructors of Model, Session and Dataset are not for programs

const closed = (what) => new TypeError(`the ${what} is closed`);

// What owns a handle. The garbage collector frees one that is not closed.
class Owner {
  #handle;

  constructor(secret, handle) {
    if (secret !== SECRET) throw new TypeError(`use a static function of ${new.target.name}`);
    this.#handle = handle;
  }

  static handle(owner, type) {
    if (!(owner instanceof type)) throw new TypeError(`${owner} is no ${type.name}`);
    if (!owner.#handle) throw closed(type.name.toLowerCase());
    return owner.#handle;
  }

  close() {
    if (this.#handle) addon.close(this.#handle);
    this.#handle = null;
  }
}

/** A forward model, a training model or a checkpoint. */
class Model extends Owner {
  static async #made(handle) {
    return new Model(SECRET, await handle);
  }

  get #handle() {
    return Owner.handle(this, Model);
  }

  static async load(path) {
    return Model.#made(addon.modelLoad(true, path));
  }

  static async fromBytes(bytes) {
    if (!(bytes instanceof Uint8Array)) throw new TypeError('the bytes of a model are a Uint8Array');
    return Model.#made(addon.modelFromBytes(true, bytes));
  }

  async save(path) {
    return addon.modelSave(true, this.#handle, path);
  }

  async toBytes() {
    return addon.modelToBytes(true, this.#handle);
  }

  get metadata() {
    return addon.modelMetadata(this.#handle);
  }

  get notes() {
    return addon.modelNotes(this.#handle);
  }

  async build(given) {
    return Model.#made(addon.modelBuild(true, this.#handle, options(given)));
  }

  async buildWithLoss(loss, given) {
    return Model.#made(addon.modelBuildWithLoss(true, this.#handle, Owner.handle(loss, Model), options(given)));
  }

  async buildForData(data, given) {
    const isPath = typeof data === 'string';
    const arrays = isPath ? [] : tensors(data);
    const [handle, note] = await addon.modelBuildForData(true, this.#handle, isPath ? data : null, arrays, options(given));
    return { model: new Model(SECRET, handle), note };
  }

  sizes(arrays) {
    return addon.modelSizes(this.#handle, tensors(arrays));
  }

  async check(given) {
    return addon.modelCheck(true, this.#handle, options(given));
  }

  async export(given) {
    return Model.#made(addon.modelExport(true, this.#handle, options(given)));
  }

  async exportInto(path, given) {
    return addon.modelExportInto(true, this.#handle, options(given), path);
  }

  async saveAdapter(folder) {
    return addon.modelSaveAdapter(true, this.#handle, folder);
  }

  async flatten(entry) {
    return Model.#made(addon.modelFlatten(true, this.#handle, entry));
  }

  async differentiate(given) {
    const [forward, backward] = await addon.modelDifferentiate(true, this.#handle, options(given));
    return { forward: new Model(SECRET, forward), backward: new Model(SECRET, backward) };
  }

  async derivative(kind, given, loss) {
    const other = loss ? Owner.handle(loss, Model) : null;
    return Model.#made(addon.modelDerivative(true, this.#handle, kind, other, options(given)));
  }

  async withWeights(weights, strict = true) {
    return Model.#made(addon.modelWithWeights(true, this.#handle, tensors(weights), Boolean(strict)));
  }
}

/** Batches of the program: a class with next(), and begin(epoch) and batches where they are of use. */
function kindOf(data) {
  if (data instanceof Dataset) return ['files', Owner.handle(data, Dataset)];
  if (data && typeof data.next === 'function') return ['batches', Number(data.batches || 0)];
  if (data && typeof data === 'object') return ['arrays', tensors(data)];
  throw new TypeError('data are arrays by name, a Dataset, or an object with next()');
}

const bridges = new Set();  // of calls that work
process.on('exit', () => bridges.forEach((bridge) => addon.abandon(bridge)));

// Calls work(bridge) of the addon, and answers what it asks from callbacks {kind: function(told)}, each of which gives
// [next, tensors or null], or a promise of it, and may use the session. What a callback throws is what the call throws.
async function asking(session, callbacks, work) {
  let failure;
  const ask = async (kind, told) => {
    if (kind === 'probe') return;  // the worker asks whether JavaScript is still there
    try {
      const callback = callbacks[kind];
      const [next, inputs] = callback ? await session.idle(() => callback(told)) : [0, null];
      addon.answer(bridge, next, inputs);
    } catch (error) {
      failure = failure || { error };
      addon.answer(bridge, FAIL, null);
    }
  };
  const bridge = addon.bridge(ask);
  bridges.add(bridge);
  try {
    const result = await work(bridge);
    if (failure) throw failure.error;
    return result;
  } catch (error) {
    throw failure ? failure.error : error;
  } finally {
    bridges.delete(bridge);
    addon.finish(bridge);
  }
}

// What a callback says: nothing, 'continue', 'stop' or 'interrupt'.
function nextOf(said) {
  const next = said === undefined ? 0 : NEXT[said];
  if (next === undefined) throw new TypeError(`a callback returns 'continue', 'stop', 'interrupt' or nothing, not ${said}`);
  return [next, null];
}

// A function of the program is called at once: in the same turn it may not await what the library does.
const told = (callback) => callback && (async (value) => nextOf(await callback(value)));

const works = () => new OnnxTrainError('the session works: await its call before the next one', 'usage', '');

/** The outputs of a run by name or role. Their memory is the session's: they are empty after its next call. */
class Outputs {
  #ports;

  constructor(list, portsOf) {
    this.tensors = list.map(tensorOf);
    this.#ports = portsOf;
  }

  get(name) {
    const named = this.tensors.find((tensor) => tensor.name === name);
    if (named) return named;
    const port = this.#ports.find(({ role, name: of }) => role === name && this.tensors.some((tensor) => tensor.name === of));
    if (!port) throw new RangeError(`the run has no output '${name}'`);
    return this.get(port.name);
  }

  /** The first element of an output. */
  scalar(name) {
    const [value] = this.get(name).data;
    return value;
  }

  [Symbol.iterator]() {
    return this.tensors[Symbol.iterator]();
  }
}

/** A training model's state on a device, and the plans that run it. One call at a time. */
class Session extends Owner {
  #busy = false;
  #closed = false;
  #outputs = [];  // buffers of the last call's outputs
  #states = new Map();  // tensors over the states

  static async create(training, given) {
    return new Session(SECRET, await addon.sessionCreate(true, Owner.handle(training, Model), options(given)));
  }

  get #handle() {
    const handle = Owner.handle(this, Session);
    if (this.#busy) throw works();
    return handle;
  }

  // The handle for a call after which outputs of earlier ones are gone.
  #called() {
    const handle = this.#handle;
    for (const buffer of this.#outputs) addon.detach(buffer);
    this.#outputs = [];
    return handle;
  }

  // A call on a worker's thread.
  async #long(work) {
    const handle = this.#called();
    this.#busy = true;
    try {
      return await work(handle);
    } finally {
      this.#busy = false;
      if (this.#closed) this.#detachStates();
    }
  }

  // Within callback(), the session does not work at the call that called it.
  async #idle(callback) {
    this.#busy = false;
    try {
      return await callback();
    } finally {
      if (this.#busy) throw works();
      this.#busy = true;
    }
  }

  #given(list, portsOf) {
    for (const { buffer } of list) {
      if (this.#closed) addon.detach(buffer);
    }
    if (this.#closed) throw closed('session');
    this.#outputs = list.map(({ buffer }) => buffer);
    return new Outputs(list, portsOf);
  }

  async run(entry, inputs = {}) {
    const portsOf = this.outputPorts(entry);
    return this.#given(await this.#long((handle) => addon.sessionRun(true, handle, entry, tensors(inputs))), portsOf);
  }

  /** The same on the calling thread. */
  runSync(entry, inputs = {}) {
    const portsOf = this.outputPorts(entry);
    return this.#given(addon.sessionRun(false, this.#called(), entry, tensors(inputs)), portsOf);
  }

  async fit(training, given = {}, { evaluation, onStep, onEvaluation, onCheckpoint, onNote } = {}) {
    const sources = [training, evaluation];
    const callbacks = {
      step: told(onStep),
      evaluation: told(onEvaluation && ((value) => onEvaluation({ ...value, tables: value.tables.map(tensorOf) }))),
      checkpoint: told(onCheckpoint),
      note: told(onNote && (async (text) => void (await onNote(text)))),
      begin: async ([number, epoch]) => {
        if (sources[number].begin) await sources[number].begin(epoch);
        return [0, null];
      },
      next: async (number) => [0, tensors((await sources[number].next()) || {})],
    };
    const parts = [...kindOf(training), ...(evaluation ? kindOf(evaluation) : [])];
    const reason = await this.#long((handle) =>
      asking({ idle: this.#idle.bind(this) }, callbacks, (bridge) => addon.fit(handle, bridge, options(given), Boolean(onStep), ...parts)));
    return REASONS[reason] || String(reason);
  }

  async evaluate(data, given, { onNote } = {}) {
    const callbacks = {
      note: told(onNote && (async (text) => void (await onNote(text)))),
      begin: async ([, epoch]) => {
        if (data.begin) await data.begin(epoch);
        return [0, null];
      },
      next: async () => [0, tensors((await data.next()) || {})],
    };
    return this.#long((handle) =>
      asking({ idle: this.#idle.bind(this) }, callbacks, (bridge) => addon.evaluate(handle, bridge, options(given), ...kindOf(data))));
  }

  async predict(data, given, { onNote } = {}) {
    const portsOf = this.outputPorts('predict');
    const callbacks = { note: told(onNote && (async (text) => void (await onNote(text)))) };
    return this.#given(await this.#long((handle) =>
      asking({ idle: this.#idle.bind(this) }, callbacks, (bridge) => addon.predict(handle, bridge, options(given), ...kindOf(data)))), portsOf);
  }

  async generate(prompts, given, onToken) {
    const texts = prompts.map(() => []);
    const token = async ([text, drawn]) => {
      texts[text].push(drawn);
      const said = onToken && (await onToken(text, drawn));
      if (said === 'end-text') return [END_TEXT, null];
      return [said === false ? NEXT.stop : 0, null];
    };
    await this.#long((handle) => asking({ idle: this.#idle.bind(this) }, { token }, (bridge) => addon.generate(handle, bridge, options(given), prompts)));
    return texts;
  }

  get generateNote() {
    return addon.generateNote(this.#handle);
  }

  metrics(statistics) {
    return addon.sessionMetrics(this.#called(), tensors(statistics));
  }

  metricTables() {
    return this.#given(addon.sessionMetricTables(this.#called()), []);
  }

  get entries() {
    return addon.sessionEntries(this.#handle);
  }

  inputPorts(entry) {
    return ports(addon.sessionInputs(this.#handle, entry));
  }

  outputPorts(entry) {
    return ports(addon.sessionOutputs(this.#handle, entry));
  }

  get statePorts() {
    return ports(addon.sessionStatePorts(this.#handle));
  }

  get states() {
    return addon.sessionStates(this.#handle);
  }

  plan(entry, given) {
    return addon.sessionPlan(this.#called(), entry, options(given));
  }

  scale(input) {
    return addon.sessionScale(this.#called(), input);
  }

  sampleAxis(entry, input) {
    return addon.sessionSampleAxis(this.#called(), entry, input);
  }

  /** A copy of a state. */
  get(name) {
    return tensorOf(addon.sessionGet(this.#called(), name)[0]);
  }

  set(name, tensor) {
    addon.sessionSet(this.#called(), tensors({ [name]: tensor }));
  }

  /** A state where the session keeps it, without a copy; empty after close(). */
  data(name) {
    const handle = this.#called();
    if (!this.#states.has(name)) this.#states.set(name, tensorOf(addon.sessionData(handle, name)[0]));
    return this.#states.get(name);
  }

  get device() {
    return addon.sessionDevice(this.#handle);
  }

  get rank() {
    return addon.sessionRanks(this.#handle)[0];
  }

  get ranks() {
    return addon.sessionRanks(this.#handle)[1];
  }

  swap(name, other) {
    if (!(other instanceof Session)) throw new TypeError(`${other} is no Session`);
    addon.sessionSwap(this.#called(), other.#called(), name);
  }

  async loadAdapter(name, folder) {
    return this.#long((handle) => addon.sessionLoadAdapter(true, handle, name, folder));
  }

  setAdapter(name) {
    addon.sessionSetAdapter(this.#called(), name);
  }

  async initialize(seed) {
    return this.#long((handle) => addon.sessionInitialize(true, handle, seed));
  }

  async model() {
    return new Model(SECRET, await this.#long((handle) => addon.sessionModel(true, handle)));
  }

  /** Frees the session, after the call that it works at. Arrays over its memory are empty then. Another call throws at once. */
  close() {
    this.#closed = true;
    for (const buffer of this.#outputs) addon.detach(buffer);
    if (!this.#busy) this.#detachStates();
    super.close();
  }

  #detachStates() {
    for (const { data } of this.#states.values()) addon.detach(data.buffer);
    this.#states.clear();
  }
}

/** Data files, as the command's --data takes them. */
class Dataset extends Owner {
  get #handle() {
    return Owner.handle(this, Dataset);
  }

  /** What an entry point of the session takes; without a session all arrays of a .npz or .npy. */
  static async open(path, session = null, given = {}) {
    const { entry = null, ...others } = given;
    const handle = session ? Owner.handle(session, Session) : null;
    return new Dataset(SECRET, await addon.datasetOpen(true, path, handle, entry, options(others)));
  }

  static async openSafetensors(path) {
    return new Dataset(SECRET, await addon.safetensorsOpen(true, path));
  }

  static async saveSafetensors(path, named, metadata = {}) {
    return addon.safetensorsSave(true, path, tensors(named), Object.entries(metadata));
  }

  /** Copies of the arrays. */
  tensors() {
    return addon.datasetArrays(this.#handle).map(tensorOf);
  }

  get samples() {
    return addon.datasetSize(this.#handle, 0)[0];
  }

  batchesOf(batchSize) {
    return addon.datasetSize(this.#handle, batchSize)[1];
  }

  get metadata() {
    return addon.datasetMetadata(this.#handle);
  }
}

module.exports = {
  Dataset,
  Model,
  OnnxTrainError,
  Outputs,
  Session,
  Tensor,
  version: addon.version(),
  /** The options of "build", "session", "fit", "data" and others, as onnx_train_options lists them, a line each. */
  options(of) {
    const lines = addon.options(of);
    if (lines === null) throw new RangeError(`no options are known of '${of}'`);
    return lines;
  },
  learningRate: (step, given) => addon.learningRate(step, options(given)),
  split(samples, given) {
    const [training, evaluation] = addon.split(samples, options(given));
    return { training, evaluation };
  },
};
