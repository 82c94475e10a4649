// Keys of the metadata that say what data held, and what predictions are. They stay in a model that is exported, as
// kPreprocess does.
#pragma once

namespace onnx_train {

inline constexpr const char* kPreprocess = "onnx_train.preprocess";  // what is done to data: runtime/data/preprocess.h
inline constexpr const char* kClassNames = "onnx_train.classes";     // a JSON list: the names of the classes
inline constexpr const char* kTableColumns =
    "onnx_train.columns";  // how columns of tables are read: runtime/data/tables/table.h
inline constexpr const char* kTableInputs = "onnx_train.inputs";      // which columns each input takes: there, too
inline constexpr const char* kMaskValues = "onnx_train.mask_values";  // as --mask-values takes them
inline constexpr const char* kLabelSeparator = "onnx_train.label_separator";  // as --label-separator takes it
inline constexpr const char* kFirstIndex = "onnx_train.first_index";  // "0" or "1": of features in LIBSVM's format
// What made tokens of texts: Tokenizer::identity of runtime/data/tokenizer/tokenizer.h
inline constexpr const char* kTokenizer = "onnx_train.tokenizer";
inline constexpr const char* kTableMetadata[] = {kClassNames,     kTableColumns, kTableInputs, kMaskValues,
                                                 kLabelSeparator, kFirstIndex,   kTokenizer};

// Which output holds scores of classes: a JSON list of texts, its name, "classes" (one of them) or "yes_no" (each for
// itself), the axis of the classes, and "scores" (of which softmax or the sigmoid makes probabilities) or
// "probabilities". kNoScores: none does, outputs are numbers.
inline constexpr const char* kScoresOf = "onnx_train.scores";
inline constexpr const char* kNoScores = "[]";

}  // namespace onnx_train
