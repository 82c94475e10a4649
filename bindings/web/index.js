export { OnnxTrainError } from './error.js';
export { Session } from './session.js';
export { readSafetensors, writeSafetensors } from './tensors.js';
