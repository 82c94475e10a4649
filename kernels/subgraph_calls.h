// Operators of lowered graphs alone, in our domain: they call their subgraphs as ONNX's Scan and If do, but what these
// read from outside are further inputs of the node and of each subgraph, in one order. Attributes: `states` and
// `scanned`, how many of the inputs are states and scanned, along the first axis; directions as Scan has them.
#pragma once

namespace onnx_train {

inline constexpr const char* kCallScan = "CallScan";
inline constexpr const char* kCallIf = "CallIf";

}  // namespace onnx_train
