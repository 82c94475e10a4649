'use strict';
// Errors, tensors and options of JavaScript as the addon takes and gives them.

const addon = require(process.env.ONNX_TRAIN_ADDON || './build/Release/onnx_train.node');

const STATUS = ['ok', 'usage', 'file', 'unsupported', 'data', 'memory', 'device', 'internal'];

// [ONNX's number, the typed array of its elements]
const TYPES = {
  float32: [1, Float32Array],
  uint8: [2, Uint8Array],
  int8: [3, Int8Array],
  uint16: [4, Uint16Array],
  int16: [5, Int16Array],
  int32: [6, Int32Array],
  int64: [7, BigInt64Array],
  bool: [9, Uint8Array],
  float16: [10, Uint16Array],
  float64: [11, Float64Array],
  uint32: [12, Uint32Array],
  uint64: [13, BigUint64Array],
  bfloat16: [16, Uint16Array],
};
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, [number]]) => [number, name]));
const DEFAULTS = new Map(Object.entries(TYPES).filter(([name]) => !['bool', 'float16', 'bfloat16'].includes(name)).map(([name, [, array]]) => [array, name]));

/** A call failed: the message is the line that the command onnx-train prints. */
class OnnxTrainError extends Error {
  constructor(message, status, code) {
    super(message);
    this.name = 'OnnxTrainError';
    this.status = status;
    this.code = code;
  }
}
addon.setError((status, text, code) => new OnnxTrainError(text, STATUS[status] || String(status), code));

/** A tensor over a typed array, which the library reads in place. */
class Tensor {
  constructor(data, shape, type) {
    this.type = type || DEFAULTS.get(data && data.constructor);
    if (!TYPES[this.type] || !(data instanceof TYPES[this.type][1])) {
      throw new TypeError(`a tensor of ${this.type || 'numbers'} is made of no ${(data && data.constructor && data.constructor.name) || data}`);
    }
    this.data = data;
    this.shape = Array.from(shape || [data.length], Number);
    const elements = this.shape.reduce((product, size) => product * size, 1);
    if (elements !== data.length) {
      throw new TypeError(`a tensor has the shape [${this.shape.join(', ')}] and ${data.length} elements`);
    }
  }
}

// Of the library: {name, type, shape, buffer} as a Tensor with a name.
function tensorOf(parts) {
  const type = NAMES[parts.type];
  return Object.assign(new Tensor(new TYPES[type][1](parts.buffer), parts.shape, type), { name: parts.name });
}

// {x: Tensor, learning_rate: 0.1} as the addon takes them; numbers are float32 scalars.
function tensors(named) {
  return Object.entries(named).map(([name, value]) => {
    const tensor = typeof value === 'number' ? new Tensor(new Float32Array([value]), []) : value;
    if (!(tensor instanceof Tensor)) throw new TypeError(`'${name}' is no Tensor and no number`);
    return [name, TYPES[tensor.type][0], tensor.shape, tensor.data];
  });
}

// {batchSize: 32, freeze: ['a', 'b']} as [['batch-size', '32'], ['freeze', 'a'], ['freeze', 'b']].
function options(given) {
  const list = [];
  for (const [key, value] of Object.entries(given || {})) {
    const name = key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    if (value === undefined) continue;
    for (const item of Array.isArray(value) ? value : [value]) list.push([name, String(item)]);
  }
  return list;
}

function ports(list) {
  return list.map((port) => ({ ...port, type: NAMES[port.type] }));
}

module.exports = { OnnxTrainError, Tensor, addon, options, ports, tensorOf, tensors };
