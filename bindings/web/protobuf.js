// Protocol buffers, as far as models need them: the fields of a message, and messages of fields. Bytes are views of what is
// read, never copies.

const VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5;
const decoder = new TextDecoder('utf-8', { fatal: true });
const encoder = new TextEncoder();

export const text = (bytes) => decoder.decode(bytes);

// A number that a varint holds, as BigInt if it does not fit a Number.
function readVarint(bytes, at) {
  let low = 0, factor = 1;
  for (let i = at; i < bytes.length && i < at + 10; ++i) {
    const digit = bytes[i] & 127;
    low += digit * factor;
    factor *= 128;
    if (bytes[i] < 128) return { value: low > Number.MAX_SAFE_INTEGER ? readBig(bytes, at) : low, end: i + 1 };
  }
  throw new RangeError('a number has no end');
}

function readBig(bytes, at) {
  let value = 0n;
  for (let i = at, shift = 0n; ; ++i, shift += 7n) {
    value |= BigInt(bytes[i] & 127) << shift;
    if (bytes[i] < 128) return BigInt.asIntN(64, value);
  }
}

// Gives the fields of a message in their order: { number, value, whole }. `value` is a number (a BigInt where it is large or
// negative) or bytes, `whole` are the bytes of the field with its tag. Throws RangeError for bytes that are no message.
export function* fieldsOf(bytes) {
  for (let at = 0; at < bytes.length;) {
    const tag = readVarint(bytes, at);
    const type = tag.value % 8, number = Math.floor(Number(tag.value) / 8);
    let value, end;
    if (type === VARINT) {
      ({ value, end } = readVarint(bytes, tag.end));
    } else if (type === BYTES) {
      const size = readVarint(bytes, tag.end);
      end = size.end + Number(size.value);
      value = bytes.subarray(size.end, end);
    } else if (type === FIXED64 || type === FIXED32) {
      end = tag.end + (type === FIXED64 ? 8 : 4);
      value = bytes.subarray(tag.end, end);
    } else {
      throw new RangeError(`a field has the type ${type}`);
    }
    if (number === 0 || end > bytes.length) throw new RangeError('a field is cut off');
    yield { number, value, whole: bytes.subarray(at, end) };
    at = end;
  }
}

// The numbers of a repeated field, one of its values, packed or not.
export function numbersOf(value) {
  if (!(value instanceof Uint8Array)) return [value];
  const numbers = [];
  for (let at = 0; at < value.length;) {
    const next = readVarint(value, at);
    numbers.push(next.value);
    at = next.end;
  }
  return numbers;
}

function varint(number) {
  const bytes = [];
  let left = BigInt.asUintN(64, BigInt(number));
  for (; left > 127n; left >>= 7n) bytes.push(Number(left & 127n) | 128);
  return Uint8Array.of(...bytes, Number(left));
}

export function concat(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

// A field: of a number, a text, or bytes, which may be a message, the concatenation of its fields.
export function field(number, value) {
  if (typeof value === 'number' || typeof value === 'bigint') return concat([varint(number * 8 + VARINT), varint(value)]);
  const bytes = typeof value === 'string' ? encoder.encode(value) : value;
  return concat([varint(number * 8 + BYTES), varint(bytes.length), bytes]);
}
