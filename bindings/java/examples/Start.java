import onnxtrain.Dataset;
import onnxtrain.Model;
import onnxtrain.Next;
import onnxtrain.Observer;
import onnxtrain.Session;

/** The program of the page about languages: java -cp onnx-train.jar Start.java MODEL.onnx TRAIN.npz TRAINED.onnx */
public final class Start {
  public static void main(String[] arguments) {
    try (Model forward = Model.load(arguments[0]);
        Model training = forward.build("loss", "cross_entropy", "optimizer", "adamw");
        Session session = new Session(training);
        Dataset data = Dataset.open(arguments[1], session)) {
      Observer observer = new Observer().onStep(step -> step.loss < 0.1 ? Next.STOP : Next.CONTINUE);
      session.fit(data, null, observer, "epochs", "4", "lr", "0.003");
      try (Model trained = session.model(); Model inference = trained.export()) {
        inference.save(arguments[2]);
      }
    }
  }
}
