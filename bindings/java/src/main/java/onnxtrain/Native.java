package onnxtrain;

import java.nio.ByteBuffer;

/** The functions of the C interface. Handles are addresses; each function throws OnnxTrainException. */
final class Native {
  static {
    Loader.load();
  }

  private Native() {}

  static native String version();

  static native String options(String of);

  static native double learningRate(long step, String[] options);

  static native long[][] split(int samples, String[] options);

  static native long modelLoad(String path);

  static native long modelFromBytes(byte[] bytes);

  static native void modelFree(long model);

  static native void modelSave(long model, String path);

  static native byte[] modelToBytes(long model);

  static native String[] modelMetadata(long model);

  static native String[] modelNotes(long model);

  static native long modelBuild(long forward, String[] options);

  static native long modelBuildWithLoss(long forward, long loss, String[] options);

  static native long modelBuildForData(long forward, String path, Tensor[] arrays, String[] options, String[] note);

  static native String modelSizes(long forward, Tensor[] arrays);

  static native String[][] modelCheck(long forward, String[] options);

  static native long modelExport(long training, String[] options);

  static native String modelExportInto(long training, String[] options, String path);

  static native void modelSaveAdapter(long training, String folder);

  static native long modelFlatten(long training, String entry);

  static native long[] modelDifferentiate(long forward, String[] options);

  static native long modelDerivative(long forward, String kind, long loss, String[] options);

  static native long modelWithWeights(long model, Tensor[] tensors, boolean strict);

  static native long sessionCreate(long training, String[] options);

  static native void sessionFree(long session);

  static native Tensor[] sessionRun(long session, String entry, Tensor[] inputs);

  static native double sessionScale(long session, String input);

  static native int sessionSampleAxis(long session, String entry, String input);

  static native String[] sessionEntries(long session);

  static native Port[] sessionInputs(long session, String entry);

  static native Port[] sessionOutputs(long session, String entry);

  static native Port[] sessionStatePorts(long session);

  static native String[] sessionStates(long session);

  static native Plan sessionPlan(long session, String entry, String[] options);

  static native Tensor sessionState(long session, String name);

  static native void sessionGet(long session, String name, ByteBuffer data);

  static native void sessionSet(long session, String name, ByteBuffer data);

  static native ByteBuffer sessionAddress(long session, String name);

  static native int[] sessionRanks(long session);

  static native Device sessionDevice(long session);

  static native void sessionSwap(long session, long other, String name);

  static native void sessionLoadAdapter(long session, String name, String folder);

  static native void sessionSetAdapter(long session, String name);

  static native void sessionInitialize(long session, long seed);

  static native long sessionModel(long session);

  static native long datasetOpen(String path, long session, String entry, String[] options);

  static native void datasetFree(long dataset);

  static native Tensor[] datasetArrays(long dataset);

  static native long[] datasetSize(long dataset, long batchSize);

  static native String[] datasetMetadata(long dataset);

  static native long safetensorsOpen(String path);

  static native void safetensorsSave(String path, Tensor[] tensors, String[] metadata);

  static native int fit(long session, DataSource training, long trainingFiles, DataSource evaluation,
      long evaluationFiles, String[] options, Observer observer);

  static native Object[] evaluate(long session, DataSource data, long files, String[] options, Observer observer);

  static native Tensor[] predict(long session, DataSource data, long files, String[] options, Observer observer);

  static native Object[] sessionMetrics(long session, Tensor[] statistics);

  static native Tensor[] sessionMetricTables(long session);

  static native void generate(long session, long[][] prompts, String[] options, TokenReceiver receiver);

  /** Gets each token, and gives the number of a Next. */
  interface TokenReceiver {
    int drawn(int text, long token);
  }

  static native String generateNote(long session);
}
