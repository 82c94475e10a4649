// Files of training data, as named arrays: what the command, the C interface and the Python package read. Arrays are
// views of the mapped file where they can be, and keep it mapped. Functions run on any thread. Nothing in a file is
// trusted: sizes are checked against the file before memory is asked for, and every fault is one Error that names the
// file, of the code kFile.
//
//   X.npz          arrays by key; stored ones are mapped, compressed ones inflated
//   X.safetensors  tensors by name, mapped
//   -              standard input: .npz archives after each other, as numpy.savez writes them into a pipe
//   FOLDER         with <input>.npy files
//   X.csv          a header, then a line a sample: table.h says what becomes of texts and missing values. Input `x` is
//   the column `x`, or the columns x0, x1, ... or x_0, x_1, ... in
//                  that order; where the model's first input has neither, it is all columns that no other input takes
//                  and no target of the model, in the order of the file
//   X.libsvm, X.svm, X.svmlight  rows LABEL INDEX:VALUE ...: features to the model's first input, labels to the loss's
//   IMAGES,LABELS  IDX files (MNIST), .gz or not; the first goes to the model's first input, the second to the loss's
//   FOLDER         with IDX files: train-images*, train-labels*; for evaluation t10k-images*, t10k-labels*
//   X.bin          CIFAR-10 binary: images to the model's first input, labels to the loss's
//   FOLDER         with data_batch_*.bin; for evaluation test_batch.bin
//   X.bin, X.npy, X.txt, X.jsonl, a pattern such as DIR/train_*.bin, FOLDER with .bin files, several: X.bin,DIR/*.txt
//                  with the share of each: X.bin:0.7,DIR/*.txt:0.3
//                  tokens, for models that take int[batch, tokens]: tokens.h
//   FOLDER, X.csv, X.json, X.png  pictures, with a class, a mask or boxes each: images/files.h
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "onnx_passes/ir/tensor.h"
#include "runtime/data/dataset.h"
#include "runtime/data/files/read_options.h"

namespace onnx_train {

// The files of texts and tokens that `path` names: one, several, those of a folder or pattern; none if it is something
// else.
std::vector<std::string> text_files(const std::string& path, DataRole role);

// What `path` holds, by what it is; `inputs` tells formats without names which array goes where.
DataArrays open_data(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options = {});

// What `given` says, and what an entry point of `model` adds. The model must outlive it.
ReadOptions reading_of(const Model& model, const EntryName& entry, const std::vector<InputSpec>& inputs,
                       const ReadOptions& given);

// The arrays of `path` that an entry point of `model` takes; `inputs` are its entry_inputs. Of a folder that holds
// both, kEvaluate and kPredict read the files for tests. Throws Error when an input without a default has no array.
DataArrays read_arrays(const std::string& path, const Model& model, const EntryName& entry,
                       const std::vector<InputSpec>& inputs, const ReadOptions& options = {});
// All arrays of a file that names them. Throws Error for formats whose arrays have the names of a model's inputs.
TensorMap read_arrays(const std::string& path);
// Writes arrays by name, atomically: as safetensors if the path ends so, else as .npz.
void write_arrays(const std::string& path, const TensorMap& arrays);

// What a user should be told of how data enter the network; mostly empty.
using DataNotes = std::vector<std::string>;

// A dataset of what read_arrays gives, whose notes the caller has said. The steps on pictures that `preprocess` lacks
// are those that the model's input suggests, and `notes` say them. `model` knows the classes that it was trained with,
// if any; `augment` is as --augment takes it.
Dataset make_dataset(DataArrays data, const std::vector<InputSpec>& inputs, Preprocess preprocess, const Model& model,
                     const std::string& augment, bool trains, DataNotes* notes);

// What `inputs` need of `path`, as a Dataset.
Dataset load_dataset(const std::string& path, const std::vector<InputSpec>& inputs, DataRole role = DataRole::kTrain,
                     const Preprocess& preprocess = {}, ReadOptions options = {}, DataNotes* notes = nullptr);

// The same for a command: with the model's own preprocessing or, if it is given, that of `options`. `notes` say where
// the two differ, what was guessed, and that bytes enter the network as they are.
Dataset load_dataset(const std::string& path, const Model& model, const EntryName& entry, const ReadOptions& options,
                     DataNotes* notes);

// The first `count` samples of `path` as one batch; without a number, 32 or all where there are fewer. Throws Error
// when there are fewer than `count`.
TensorMap first_batch(const std::string& path, const std::vector<InputSpec>& inputs, std::optional<int64_t> count,
                      const Preprocess& preprocess);

}  // namespace onnx_train
