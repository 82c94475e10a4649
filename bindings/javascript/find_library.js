'use strict';
// Prints where libonnx_train.so is, or its header: `node find_library.js lib` or `include`, which binding.gyp calls. In this
// order: ONNX_TRAIN_LIB_DIR, what pkg-config says, the build of the checkout. The header is in ONNX_TRAIN_INCLUDE_DIR, in
// ../include of the library's folder, or in the checkout.
const { existsSync } = require('fs');
const { join, resolve } = require('path');
const { spawnSync } = require('child_process');

function installed() {
  const { status, stdout } = spawnSync('pkg-config', ['--variable=libdir', 'onnx_train'], { encoding: 'utf8' });
  return status === 0 ? stdout.trim() : '';
}

function found(name, file, folders) {
  const folder = folders.find((candidate) => existsSync(join(candidate, file)));
  if (folder) return folder;
  console.error(`onnx-train: ${file} is not in ${folders.join(' or ')}: set ${name} to its folder, or install it for pkg-config`);
  return process.exit(1);
}

const { ONNX_TRAIN_LIB_DIR, ONNX_TRAIN_INCLUDE_DIR } = process.env;
const checkout = join(__dirname, '../..');
const library = resolve(ONNX_TRAIN_LIB_DIR || installed() || join(checkout, 'build'));
if (process.argv[2] === 'lib') {
  console.log(found('ONNX_TRAIN_LIB_DIR', 'libonnx_train.so', [library]));
} else {
  const folders = ONNX_TRAIN_INCLUDE_DIR ? [ONNX_TRAIN_INCLUDE_DIR] : [join(library, '../include'), join(checkout, 'include')];
  console.log(found('ONNX_TRAIN_INCLUDE_DIR', 'onnx_train/onnx_train.h', folders.map((folder) => resolve(folder))));
}
