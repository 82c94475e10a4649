// Arrays of a file of numpy, .npz: { dims, data } by name. Those of floats and integers in row-major order are read.
const KINDS = {
  '<f4': Float32Array, '<f8': Float64Array, '|u1': Uint8Array, '|i1': Int8Array, '<i4': Int32Array, '<i8': BigInt64Array,
};

export async function readNpz(buffer) {
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;  // of the directory: a record of 22 bytes or more, which begins so
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) --end;
  if (end < 0) throw new Error('no .npz file');
  const arrays = {};
  for (let i = 0, at = view.getUint32(end + 16, true); i < view.getUint16(end + 10, true); ++i) {
    const method = view.getUint16(at + 10, true), size = view.getUint32(at + 20, true);
    const name = new Uint8Array(buffer, at + 46, view.getUint16(at + 28, true));
    const local = view.getUint32(at + 42, true);
    const begin = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const bytes = await inflated(new Uint8Array(buffer, begin, size), method);
    arrays[new TextDecoder().decode(name).replace(/\.npy$/, '')] = readNpy(bytes);
    at += 46 + name.length + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return arrays;
}

async function inflated(bytes, method) {
  if (method === 0) return bytes;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function readNpy(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const [start, size] = bytes[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const header = new TextDecoder().decode(bytes.subarray(start, start + size));
  const [, kind] = header.match(/'descr': '([^']*)'/);
  const dims = header.match(/'shape': \(([^)]*)\)/)[1].split(',').filter((part) => part.trim() !== '').map(Number);
  if (!KINDS[kind] || /'fortran_order': True/.test(header)) throw new Error(`an array of ${kind} is not read`);
  const data = bytes.slice(start + size);
  return { dims, data: new KINDS[kind](data.buffer) };
}
