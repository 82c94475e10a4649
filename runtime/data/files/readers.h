// One function per format; open_data (source.h) chooses among them. Formats that do not name their arrays take the
// names from `inputs`. The caller owns the source. Functions may run on any thread, and throw Error that names the
// file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/files/data_source.h"

namespace onnx_train {

std::unique_ptr<DataSource> open_npz(const std::string& path);
std::unique_ptr<DataSource> open_safetensors(const std::string& path);
// Of --data -: .npz archives after each other, whose arrays are joined by rows.
std::unique_ptr<DataSource> open_standard_input();
std::unique_ptr<DataSource> open_npy_folder(const std::string& folder);
// A table of numbers and texts, of pictures (tables/picture_table.h), or of texts with labels
// (tables/labelled_texts.h).
std::unique_ptr<DataSource> open_csv(const std::string& path, const std::vector<InputSpec>& inputs,
                                     const ReadOptions& options);
// The second path may be empty: images only.
std::unique_ptr<DataSource> open_idx(const std::string& images, const std::string& labels,
                                     const std::vector<InputSpec>& inputs);
std::unique_ptr<DataSource> open_cifar10(const std::vector<std::string>& paths, const std::vector<InputSpec>& inputs);

// The formats, for messages: "... is none of them".
constexpr const char* kFormats =
    "data are read from .npz, .safetensors, .csv, a folder of .npy files, IDX files (MNIST), CIFAR-10's .bin files, "
    "pictures (.png, .jpg, .webp) in a folder for each class, or with boxes in COCO's .json, and, for models of "
    "tokens, "
    ".bin, .npy, .txt and .jsonl";

// Arrays that have been read already: what the formats with fixed contents give.
std::unique_ptr<DataSource> make_source(const std::string& path, TensorMap arrays);
std::unique_ptr<DataSource> make_source(const std::string& path, DataArrays arrays);

}  // namespace onnx_train
