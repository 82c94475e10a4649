// Operators of lowered graphs alone, in our domain: they call their subgraphs as ONNX's Scan, If and Loop do, but what
// these read from outside are further inputs of the node and of each subgraph, in one order.
//
// CallScan, CallIf: `states` and `scanned` say how many of the inputs are states and scanned, along the first axis;
// directions as Scan has them.
// CallLoop: the inputs are the largest number of steps and the condition, either of which may be absent, then `states`.
// The body reads the number of the step, the condition and the states, and returns the next of each.
// CallSegment: a part of the plan that is planned when it runs, for the contents of its first `found` inputs.
#pragma once

namespace onnx_train {

inline constexpr const char* kCallScan = "CallScan";
inline constexpr const char* kCallIf = "CallIf";
inline constexpr const char* kCallLoop = "CallLoop";
inline constexpr const char* kCallSegment = "CallSegment";

}  // namespace onnx_train
