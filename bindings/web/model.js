// A training model (docs/architecture.md): what it holds, one entry point of it as a plain model, and copies of it with other
// weights. Nothing else of ONNX is read: nodes are copied as they are.
import { OnnxTrainError } from './error.js';
import { concat, field, fieldsOf, numbersOf, text } from './protobuf.js';
import { asBytes, pairOf, propertyOf, readTensorProto, typeName, typeNumber, writeTensorProto } from './tensors.js';

// The numbers of fields in onnx.proto.
const MODEL = { opset: 8, graph: 7, metadata: 14, training: 20, functions: 25 };
const TRAINING = { algorithm: 2, updates: 4 };
const GRAPH = { node: 1, name: 2, initializer: 5, input: 11, output: 12 };
const NODE = { input: 1, output: 2, operator: 4, attribute: 5, domain: 7 };
const ATTRIBUTE = { graph: 6, graphs: 11 };
// What a run of `fit` writes into its checkpoints: where it stands, and checksums of the tensors.
const OF_RUNS = new Set(['onnx_train.checkpoint', 'onnx_train.checksum', 'onnx_train.checksums']);
const OWN_DOMAIN = 'onnx_train';

export class TrainingModel {
  // `bytes` are those of the file; they are kept and must not change.
  constructor(bytes) {
    this.bytes = asBytes(bytes);
    try {
      this.#read();
    } catch (error) {
      if (error instanceof OnnxTrainError) throw error;
      throw new OnnxTrainError('file', `no ONNX model: ${error.message}`, { cause: error });
    }
    // Initializers by name, of all graphs: { name, type, dims, role, data() }.
    this.initializers = new Map();
    for (const graph of [this.graph, ...this.entries.values()]) {
      for (const [name, tensor] of graph.initializers) this.initializers.set(name, tensor);
    }
    // The names of all states, in the order of the file.
    const written = new Set([...this.entries.values()].flatMap((entry) => entry.updates.map(([state]) => state)));
    this.states = [...this.initializers.keys()].filter((name) => written.has(name));
  }

  #read() {
    this.entries = new Map();  // the algorithms by name: graphs with `updates`, pairs of a state and its new value
    for (const { number, value } of fieldsOf(this.bytes)) {
      if (number === MODEL.graph) this.graph = readGraph(value);
      if (number !== MODEL.training) continue;
      let algorithm = readGraph(new Uint8Array());
      const updates = [];
      for (const part of fieldsOf(value)) {
        if (part.number === TRAINING.algorithm) algorithm = readGraph(part.value);
        else if (part.number === TRAINING.updates) updates.push(pairOf(part.value));
      }
      this.entries.set(algorithm.name, Object.assign(algorithm, { updates }));
    }
    if (!this.graph) throw new OnnxTrainError('file', 'no ONNX model: it has no graph');
  }

  // One entry point as a plain model: { bytes, inputs, states, results, updates }. `inputs` are data: { name, type, dims, role,
  // default }; `states` are names, and inputs, too; `results` are outputs { name, role }; `updates` are pairs of an output and
  // the state whose new value it is. Throws OnnxTrainError for a name of no entry point.
  flatten(entry) {
    const none = Object.assign(readGraph(new Uint8Array()), { updates: [] });
    const algorithm = entry === 'predict' ? none : this.entries.get(entry);
    if (!algorithm) {
      const known = ['predict', ...this.entries.keys()].join(', ');
      throw new OnnxTrainError('usage', `the model has no entry point '${entry}'; it has ${known}`);
    }
    const graphs = [this.graph, algorithm];
    const declaredOutputs = entry === 'predict' ? this.graph.outputs : algorithm.outputs;
    const results = declaredOutputs.filter(({ role }) => role !== 'next');  // those exist for an update alone
    const values = algorithm.updates.map(([, value]) => value);
    const nodes = liveNodes(graphs.flatMap((graph) => graph.nodes), [...results.map(({ name }) => name), ...values]);
    const needed = new Set([...nodes.flatMap(({ needs }) => needs), ...results.map(({ name }) => name), ...values]);
    const produced = new Set(nodes.flatMap(({ outputs }) => outputs));

    const isState = new Set(this.states);
    const declared = new Map(graphs.flatMap((graph) => graph.inputs).map((input) => [input.name, input]));
    const own = new Set(algorithm.inputs.map(({ name }) => name));
    const inputs = [...declared.values()].filter(({ name }) => !isState.has(name) && (needed.has(name) || own.has(name)));
    const initializers = new Map(graphs.flatMap((graph) => [...graph.initializers]));
    const states = [...initializers.keys()].filter((name) => isState.has(name) && needed.has(name));

    const parts = nodes.map(({ whole }) => whole);
    parts.push(field(GRAPH.name, entry));
    for (const [name, tensor] of initializers) {
      if (needed.has(name) && !isState.has(name) && !declared.has(name)) parts.push(field(GRAPH.initializer, tensor.bytes));
    }
    parts.push(...inputs.map(({ bytes }) => field(GRAPH.input, bytes)));
    parts.push(...states.map((name) => field(GRAPH.input, valueInfo(name, initializers.get(name)))));
    parts.push(...results.map(({ bytes }) => field(GRAPH.output, bytes)));

    const taken = new Set([...needed, ...produced, ...results.map(({ name }) => name)]);
    const outputs = new Set(results.map(({ name }) => name));
    const updates = algorithm.updates.map(([state, value]) => {
      let output = value;
      if (outputs.has(value) || !produced.has(value)) {  // it is an output already, or no node computes it
        for (output = `next/${state}`; taken.has(output);) output += '_';
        parts.push(field(GRAPH.node, concat([field(NODE.input, value), field(NODE.output, output), field(NODE.operator, 'Identity')])));
      }
      outputs.add(output);
      taken.add(output);
      parts.push(field(GRAPH.output, valueInfo(output, this.initializers.get(state))));
      return [output, state];
    });
    return {
      bytes: this.#withGraph(concat(parts)),
      inputs: inputs.map((input) => ({ ...input, default: initializers.get(input.name) })),
      states,
      results: results.map(({ name, role }) => ({ name, role })),
      updates,
    };
  }

  #withGraph(graph) {
    const kept = [...fieldsOf(this.bytes)].filter(({ number }) => number !== MODEL.graph && number !== MODEL.training);
    return concat([...kept.map(({ whole }) => whole), field(MODEL.graph, graph)]);
  }

  // The training model with other values of states, by name: tensors { type, dims, data }.
  with(tensors) {
    return concat([...fieldsOf(this.bytes)].map(({ number, value, whole }) => {
      if (number === MODEL.graph) return field(number, withTensors(value, tensors));
      if (number === MODEL.training) {
        const parts = [...fieldsOf(value)].map((part) =>
          part.number === TRAINING.algorithm ? field(part.number, withTensors(part.value, tensors)) : part.whole);
        return field(number, concat(parts));
      }
      return number === MODEL.metadata && OF_RUNS.has(pairOf(value)[0]) ? new Uint8Array() : whole;
    }));
  }

  // The inference model with other values of weights: what serves in every runtime.
  inference(tensors) {
    const callsOwn = this.graph.nodes.some(({ domain }) => domain === OWN_DOMAIN);
    return concat([...fieldsOf(this.bytes)].map(({ number, value, whole }) => {
      if (number === MODEL.graph) return field(number, withTensors(value, tensors));
      const isOwn = number === MODEL.functions || (number === MODEL.opset && isOpsetOf(value, OWN_DOMAIN));
      const isRecord = number === MODEL.metadata && OF_RUNS.has(pairOf(value)[0]);
      return number === MODEL.training || isRecord || (isOwn && !callsOwn) ? new Uint8Array() : whole;
    }));
  }
}

function isOpsetOf(bytes, domain) {
  return [...fieldsOf(bytes)].some(({ number, value }) => number === 1 && text(value) === domain);
}

function withTensors(graph, tensors) {
  return concat([...fieldsOf(graph)].map(({ number, value, whole }) => {
    const name = number === GRAPH.initializer ? readTensorProto(value).name : undefined;
    return name !== undefined && Object.hasOwn(tensors, name) ? field(number, writeTensorProto(name, tensors[name])) : whole;
  }));
}

// Types of inputs and outputs are those of their initializer.
function valueInfo(name, { type, dims }) {
  if (!typeNumber(type)) throw new OnnxTrainError('unsupported', `'${name}' has elements of ${type}, which this package does not read`);
  const shape = concat(dims.map((size) => field(1, field(1, size))));
  return concat([field(1, name), field(2, field(1, concat([field(1, typeNumber(type)), field(2, shape)])))]);
}

// { name, nodes, initializers, inputs, outputs }
function readGraph(bytes) {
  const graph = { name: '', nodes: [], initializers: new Map(), inputs: [], outputs: [] };
  for (const { number, value, whole } of fieldsOf(bytes)) {
    if (number === GRAPH.name) graph.name = text(value);
    else if (number === GRAPH.node) graph.nodes.push({ ...readNode(value), whole });
    else if (number === GRAPH.input) graph.inputs.push(readValueInfo(value));
    else if (number === GRAPH.output) graph.outputs.push(readValueInfo(value));
    else if (number === GRAPH.initializer) {
      const tensor = readTensorProto(value);
      graph.initializers.set(tensor.name, Object.assign(tensor, { bytes: value }));
    }
  }
  return graph;
}

// { needs, outputs, domain }: `needs` are the names of the inputs, and of all that its subgraphs read.
function readNode(bytes) {
  const node = { needs: [], outputs: [], domain: '' };
  for (const { number, value } of fieldsOf(bytes)) {
    if (number === NODE.input) node.needs.push(text(value));
    else if (number === NODE.output) node.outputs.push(text(value));
    else if (number === NODE.domain) node.domain = text(value);
    else if (number === NODE.attribute) {
      for (const part of fieldsOf(value)) {
        if (part.number !== ATTRIBUTE.graph && part.number !== ATTRIBUTE.graphs) continue;
        const graph = readGraph(part.value);
        node.needs.push(...graph.nodes.flatMap(({ needs }) => needs), ...graph.outputs.map(({ name }) => name));
      }
    }
  }
  node.outputs = node.outputs.filter((name) => name !== '');
  return node;
}

// { name, type, dims, role }: a dimension is a number, or the name of one that the model leaves open ('' if it has none); `dims`
// is null where the rank is open.
function readValueInfo(bytes) {
  const found = { name: '', type: '', dims: null, role: '', bytes };
  for (const { number, value } of fieldsOf(bytes)) {
    if (number === 1) found.name = text(value);
    else if (number === 4) found.role = propertyOf(value, 'onnx_train.role') ?? found.role;
    else if (number === 2) {
      for (const { number: kind, value: tensor } of fieldsOf(value)) {
        if (kind === 1) readTensorType(tensor, found);
      }
    }
  }
  return found;
}

function readTensorType(bytes, found) {
  for (const { number, value } of fieldsOf(bytes)) {
    if (number === 1) found.type = typeName(Number(value));
    if (number !== 2) continue;
    found.dims = [...fieldsOf(value)].map(({ value: dimension }) => {
      let size = '';
      for (const part of fieldsOf(dimension)) {
        if (part.number === 1) size = Number(numbersOf(part.value)[0]);
        else if (part.number === 2) size = text(part.value);
      }
      return size;
    });
  }
}

// The nodes that `names` depend on, in their order, which is one in which they can run.
function liveNodes(nodes, names) {
  const needed = new Set(names);
  const live = [];
  for (const node of [...nodes].reverse()) {
    if (!node.outputs.some((name) => needed.has(name))) continue;
    node.needs.forEach((name) => needed.add(name));
    live.push(node);
  }
  return live.reverse();
}
