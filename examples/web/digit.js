// What a person draws, as the digits of the data are made: a bitmap of 32 x 32, the digit as large as fits, whose blocks of
// 4 x 4 are counted: float32[1,1,8,8] from 0 to 1.
const BITMAP = 32, SIZE = 8, BLOCK = BITMAP / SIZE;

// null for a canvas on which nothing is drawn. `ink` is a canvas with the drawing alone, transparent elsewhere.
export function digitOf(ink) {
  const box = boxOf(ink);
  if (!box) return null;
  const small = new OffscreenCanvas(BITMAP, BITMAP);
  const context = small.getContext('2d', { willReadFrequently: true });
  const scale = Math.min(BITMAP / box.width, BITMAP / box.height);
  const width = box.width * scale, height = box.height * scale;
  context.drawImage(ink, box.left, box.top, box.width, box.height, (BITMAP - width) / 2, (BITMAP - height) / 2, width, height);
  const { data } = context.getImageData(0, 0, BITMAP, BITMAP);
  const digit = new Float32Array(SIZE * SIZE);
  for (let y = 0; y < BITMAP; ++y) {
    for (let x = 0; x < BITMAP; ++x) {
      const block = Math.floor(y / BLOCK) * SIZE + Math.floor(x / BLOCK);
      if (data[4 * (y * BITMAP + x) + 3] > 127) digit[block] += 1 / (BLOCK * BLOCK);
    }
  }
  return digit;
}

function boxOf(ink) {
  const { width, height } = ink;
  const { data } = ink.getContext('2d').getImageData(0, 0, width, height);
  let left = width, top = height, right = -1, bottom = -1;
  for (let y = 0; y < height; ++y) {
    for (let x = 0; x < width; ++x) {
      if (data[4 * (y * width + x) + 3] <= 127) continue;
      left = Math.min(left, x);
      right = Math.max(right, x);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y);
    }
  }
  return right < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}
