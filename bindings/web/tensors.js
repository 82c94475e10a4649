// Tensors as plain objects: { type, dims, data }, whose types have the names of onnxruntime-web, and files of them.
import { OnnxTrainError } from './error.js';
import { concat, field, fieldsOf, numbersOf, text } from './protobuf.js';

// By ONNX's number: the name, the array of its elements, the name in safetensors. float16 are bits.
const TYPES = {
  1: ['float32', Float32Array, 'F32'], 2: ['uint8', Uint8Array, 'U8'], 3: ['int8', Int8Array, 'I8'],
  4: ['uint16', Uint16Array, 'U16'], 5: ['int16', Int16Array, 'I16'], 6: ['int32', Int32Array, 'I32'],
  7: ['int64', BigInt64Array, 'I64'], 9: ['bool', Uint8Array, 'BOOL'], 10: ['float16', Uint16Array, 'F16'],
  11: ['float64', Float64Array, 'F64'], 12: ['uint32', Uint32Array, 'U32'], 13: ['uint64', BigUint64Array, 'U64'],
};
const NUMBERS = Object.fromEntries(Object.entries(TYPES).map(([number, [name]]) => [name, Number(number)]));

export const typeName = (number) => TYPES[number]?.[0] ?? `ONNX's type ${number}`;
export const typeNumber = (name) => NUMBERS[name];
export const arrayOf = (type) => TYPES[NUMBERS[type]]?.[1];
export const sizeOf = (dims) => dims.reduce((product, size) => product * size, 1);

export const bytesOf = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

// A copy of bytes as elements, at an address that suits them.
function elementsOf(bytes, Kind) {
  const copy = bytes.slice();
  return new Kind(copy.buffer, 0, copy.byteLength / Kind.BYTES_PER_ELEMENT);
}

// A TensorProto of ONNX: { name, type, dims, role, data() }; `data` copies the elements.
export function readTensorProto(bytes) {
  const found = { name: '', type: '', dims: [], role: '' };
  let raw = null, outside = false, number = 0;
  const typed = [];  // fields of numbers: floats, doubles, or varints
  for (const { number: id, value } of fieldsOf(bytes)) {
    if (id === 1) found.dims.push(...numbersOf(value).map(Number));
    else if (id === 2) found.type = typeName(number = Number(value));
    else if (id === 8) found.name = text(value);
    else if (id === 9) raw = value;
    else if (id === 4 || id === 10 || id === 5 || id === 7 || id === 11) typed.push({ id, value });
    else if (id === 14) outside = Number(value) === 1;
    else if (id === 16) found.role = propertyOf(value, 'onnx_train.role') ?? found.role;
  }
  found.data = () => {
    const Kind = TYPES[number]?.[1];
    if (!Kind) throw new OnnxTrainError('unsupported', `'${found.name}' has elements of ${found.type}, which this package does not read`);
    if (outside) throw new OnnxTrainError('file', `'${found.name}' is in another file beside the model; save the model as one file`);
    const data = raw ? elementsOf(raw, Kind) : numbersIn(typed, Kind);
    if (data.length !== sizeOf(found.dims)) {
      throw new OnnxTrainError('file', `'${found.name}' has ${data.length} elements; its shape is [${found.dims}]`);
    }
    return data;
  };
  return found;
}

function numbersIn(typed, Kind) {
  const floats = typed.filter(({ id }) => id === 4 || id === 10);
  if (floats.length > 0) return elementsOf(concat(floats.map(({ value }) => value)), Kind);
  const big = Kind === BigInt64Array || Kind === BigUint64Array;
  return Kind.from(typed.flatMap(({ value }) => numbersOf(value)).map(big ? BigInt : Number));
}

export function writeTensorProto(name, { type, dims, data }) {
  const parts = dims.map((size) => field(1, size));
  return concat([...parts, field(2, typeNumber(type)), field(8, name), field(9, bytesOf(data))]);
}

// The value of a key in a StringStringEntryProto, if it is that key's.
export function propertyOf(bytes, key) {
  const [name, value] = pairOf(bytes);
  return name === key ? value : undefined;
}

export function pairOf(bytes) {
  const pair = ['', ''];
  for (const { number, value } of fieldsOf(bytes)) pair[number - 1] = text(value);
  return pair;
}

// A file of safetensors from tensors by name.
export function writeSafetensors(tensors) {
  const header = {}, parts = [];
  let at = 0;
  for (const [name, { type, dims, data }] of Object.entries(tensors)) {
    header[name] = { dtype: TYPES[NUMBERS[type]][2], shape: dims, data_offsets: [at, at += data.byteLength] };
    parts.push(bytesOf(data));
  }
  let json = JSON.stringify(header);
  json += ' '.repeat((8 - new TextEncoder().encode(json).length % 8) % 8);
  const encoded = new TextEncoder().encode(json);
  const size = new Uint8Array(8);
  new DataView(size.buffer).setBigUint64(0, BigInt(encoded.length), true);
  return concat([size, encoded, ...parts]);
}

// The tensors of a file of safetensors by name. Throws OnnxTrainError for bytes that are none.
export function readSafetensors(file) {
  const bytes = asBytes(file);
  const damaged = (why) => new OnnxTrainError('file', `no file of safetensors: ${why}`);
  if (bytes.length < 8) throw damaged('it is cut off');
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (size > bytes.length - 8) throw damaged('its header is cut off');
  let header;
  try {
    header = JSON.parse(text(bytes.subarray(8, 8 + size)));
  } catch (error) {
    throw damaged(error.message);
  }
  const names = Object.fromEntries(Object.values(TYPES).map(([name, Kind, dtype]) => [dtype, [name, Kind]]));
  const tensors = Object.create(null);
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const [type, Kind] = names[dtype] ?? [];
    const isShape = Array.isArray(shape) && shape.every((n) => Number.isSafeInteger(n) && n >= 0);
    if (!Kind || !isShape || !Array.isArray(offsets)) throw damaged(`'${name}' has the type ${dtype} and the shape ${shape}`);
    const [begin, end] = offsets;
    const isRange = Number.isSafeInteger(begin) && Number.isSafeInteger(end) && begin >= 0 && end <= bytes.length - 8 - size;
    if (!isRange || end - begin !== sizeOf(shape) * Kind.BYTES_PER_ELEMENT) throw damaged(`'${name}' is cut off`);
    tensors[name] = { type, dims: shape, data: elementsOf(bytes.subarray(8 + size + begin, 8 + size + end), Kind) };
  }
  return tensors;
}

// Bytes of an ArrayBuffer or a view of one.
export function asBytes(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return bytesOf(source);
  throw new OnnxTrainError('usage', 'bytes are an ArrayBuffer or a Uint8Array');
}
