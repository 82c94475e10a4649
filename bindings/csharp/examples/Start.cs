// The program of the page about languages: mono Start.exe MODEL.onnx TRAIN.npz TRAINED.onnx
using OnnxTrain;

internal static class Start {
    private static void Main(string[] arguments) {
        using (var forward = Model.Load(arguments[0]))
        using (var training = forward.Build(("loss", "cross_entropy"), ("optimizer", "adamw")))
        using (var session = new Session(training))
        using (var data = Dataset.Open(arguments[1], session)) {
            var observer = new Observer { OnStep = step => step.Loss < 0.1 ? Next.Stop : Next.Continue };
            session.Fit(data, null, observer, ("epochs", "4"), ("lr", "0.003"));
            using (var trained = session.Model())
            using (var inference = trained.Export()) inference.Save(arguments[2]);
        }
    }
}
