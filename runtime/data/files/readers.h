// One function per format; open_data (source.h) chooses among them. Formats that do not name their arrays take the
// names from `inputs`. Arrays are views of mapped files where they can be, and keep these mapped; those of archives are
// read when an input takes them. Functions may run on any thread, and throw Error that names the file.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"

namespace onnx_train {

DataArrays open_npz(const std::string& path);
DataArrays open_safetensors(const std::string& path);
// Of --data -: .npz archives after each other, whose arrays are joined by rows.
DataArrays open_standard_input();
// Whether it begins with such an archive, or is empty; else it is text. Waits for its first bytes, which stay unread.
bool holds_archives();
// The next bytes of standard input, at most `size`; 0 at its end. One thread at a time. Throws Error.
size_t read_standard_input(char* to, size_t size);
// Nobody wants more: reads that wait for it, and later ones, find its end.
void leave_standard_input();
DataArrays open_npy_folder(const std::string& folder);
// A table of numbers and texts, of pictures (tables/picture_table.h), or of texts with labels
// (tables/labelled_texts.h).
DataArrays open_csv(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options);
// The second path may be empty: images only.
DataArrays open_idx(const std::string& images, const std::string& labels, const std::vector<InputSpec>& inputs);
DataArrays open_cifar10(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs);

// Sparse rows, X.libsvm: a label and INDEX:VALUE (tables/libsvm.cc).
DataArrays open_libsvm(const std::string& path, const std::vector<InputSpec>& inputs, const ReadOptions& options);

// The formats, for messages: "... is none of them".
constexpr const char* kFormats =
    "data are read from .npz, .safetensors, .csv, .libsvm, a folder of .npy files, IDX files (MNIST), CIFAR-10's .bin "
    "files, pictures (.png, .jpg, .webp) in a folder for each class, or with boxes in COCO's .json, and, for models of "
    "tokens, .bin, .npy, .txt and .jsonl";

}  // namespace onnx_train
