// Keys of the metadata that say what data held. They stay in a model that is exported, as kPreprocess does.
#pragma once

namespace onnx_train {

inline constexpr const char* kClasses = "onnx_train.classes";  // a JSON list: the names of the classes
inline constexpr const char* kTableColumns =
    "onnx_train.columns";  // how columns of tables are read: runtime/data/tables/table.h
inline constexpr const char* kTableInputs = "onnx_train.inputs";  // which columns each input takes: there, too
inline constexpr const char* kTableMetadata[] = {kClasses, kTableColumns, kTableInputs};

}  // namespace onnx_train
