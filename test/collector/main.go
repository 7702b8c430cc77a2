// Command collector runs only the OTLP receiver of the OpenTelemetry collector, for tests. It prints "ready" when it
// accepts requests. It then prints each batch of spans on one line, as OTLP's protobuf message in base64. It exits when
// its standard input ends.
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	f := flag.NewFlagSet("collector", flag.ContinueOnError)
	http := f.String("http", "127.0.0.1:4318", "address for OTLP over HTTP")
	grpc := f.String("grpc", "127.0.0.1:4317", "address for OTLP over gRPC")
	if err := f.Parse(args); err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"http": map[string]any{"endpoint": *http}, "grpc": map[string]any{"endpoint": *grpc},
	}}).Unmarshal(config); err != nil {
		return fmt.Errorf("failed to configure the receiver: %w", err)
	}
	sink, err := consumer.NewTraces((&printer{out: stdout}).print)
	if err != nil {
		return err
	}
	receiver, err := factory.CreateTraces(ctx, receivertest.NewNopSettings(factory.Type()), config, sink)
	if err != nil {
		return fmt.Errorf("failed to make the receiver: %w", err)
	}
	if err := receiver.Start(ctx, componenttest.NewNopHost()); err != nil {
		return fmt.Errorf("failed to start the receiver: %w", err)
	}
	defer func() { err = errors.Join(err, receiver.Shutdown(ctx)) }()
	if _, err := fmt.Fprintln(stdout, "ready"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, stdin)
	return err
}

// printer prints batches of spans.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func (p *printer) print(_ context.Context, traces ptrace.Traces) error {
	data, err := ptraceotlp.NewExportRequestFromTraces(traces).MarshalProto()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = fmt.Fprintln(p.out, base64.StdEncoding.EncodeToString(data))
	return err
}
