// The CPU's kernel rows, one function per operator family. A new family adds a line here and in device.cc. Within a
// family the first row that supports a node is used; families are searched in the order of device.cc.
#pragma once

#include <vector>

#include "kernels/kernel.h"

namespace onnx_train::cpu {

std::vector<Kernel> elementwise_kernels();             // elementwise.cc: the rows of kernels/elementwise.h
std::vector<Kernel> softmax_kernels();                 // softmax.cc: Softmax, LogSoftmax, Hardmax, their gradients
std::vector<Kernel> product_kernels();                 // products.cc: MatMul, Gemm
std::vector<Kernel> determinant_kernels();             // determinant.cc: Det
std::vector<Kernel> convolution_kernels();             // convolutions.cc: Conv, ConvTranspose, their gradients
std::vector<Kernel> pooling_kernels();                 // pooling.cc
std::vector<Kernel> normalization_kernels();           // normalization.cc
std::vector<Kernel> reduction_kernels();               // reductions.cc
std::vector<Kernel> shape_kernels();                   // shapes.cc: Transpose, Concat, Slice, Expand, ...
std::vector<Kernel> generator_kernels();               // generators.cc: Shape, Constant, Range, ...
std::vector<Kernel> indexing_kernels();                // indexing.cc: Gather, GatherND, ScatterND
std::vector<Kernel> gather_scatter_element_kernels();  // gather_scatter_elements.cc: ScatterElements, OneHot, ...
std::vector<Kernel> pad_trilu_reverse_kernels();       // pad_trilu_reverse.cc: Pad, Trilu, ReverseSequence
std::vector<Kernel> scan_and_topk_kernels();           // scans_and_topk.cc: CumSum, CumProd, ArgMax, TopK
std::vector<Kernel> loss_kernels();                    // losses.cc
std::vector<Kernel> optimizer_kernels();               // updates.cc
std::vector<Kernel> sparse_update_kernels();           // sparse_updates.cc
std::vector<Kernel> random_kernels();                  // random.cc
std::vector<Kernel> collective_kernels();              // collectives.cc: AllReduce, Await
std::vector<Kernel> sampling_kernels();                // sampling.cc: GridSample, RoiAlign, ...
std::vector<Kernel> fused_kernels();                   // fused.cc: fusion regions

}  // namespace onnx_train::cpu
