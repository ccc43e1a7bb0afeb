/** The server: one process that is told settings and which document is in view. */

import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  type LanguageClientOptions,
  State,
  TransportKind,
} from "vscode-languageclient/node";
import { type Chosen, chosen } from "./chosen";
import type { EngineState, Figures } from "./figures";
import { Life, type Running } from "./life";
import { SELECTOR } from "./provider";
import { KEYS, RESTRICTED } from "./settings.generated";

const SECTION = "completion-ls";
const STATE_CHANGED = "completionLs/didChangeEngineState";
const REPORT = "completionLs/engineReport";
const SHOWN = "completionLs/didShowDocument";

/** It shows no messages of its own accord: one that does not start is begun again and again. */
class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

export interface Watcher {
  /** A server runs; what it returns is disposed when that ends. */
  started(client: LanguageClient): vscode.Disposable;
  stopped(): void;
  /** What the engine does; undefined where a server starts and has not said it yet. */
  state(state: EngineState | undefined): void;
}

/** A server's process and the client of it. */
interface Process extends Running {
  readonly client: LanguageClient;
  /** The settings that it was started with. */
  readonly given: Chosen;
}

export class Server implements vscode.Disposable {
  private program = "";
  private listening: vscode.Disposable | undefined;
  private readonly life: Life<Process>;
  private readonly disposables: vscode.Disposable[] = [];

  constructor(
    private readonly output: vscode.LogOutputChannel,
    private readonly watcher: Watcher,
  ) {
    this.life = new Life({
      begun: () => watcher.state(undefined),
      answers: (one) => this.answers(one),
      gone: () => {
        this.listening?.dispose();
        watcher.stopped();
      },
      lost: (why, waitMs) => {
        const text = `The server ${this.program} ${why}`;
        output.warn(`${text} It is started again in ${waitMs / 1000} s.`);
        watcher.state({ state: "failed", text, percentage: 0 });
      },
    });
    this.disposables.push(
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(SECTION)) {
          this.tellSettings();
        }
      }),
      vscode.window.onDidChangeActiveTextEditor((editor) => this.tellShown(editor)),
      vscode.window.onDidChangeWindowState((window) => {
        if (window.focused) {
          this.tellShown(vscode.window.activeTextEditor);
        }
      }),
    );
  }

  /** The client of a server that answers. */
  get active(): LanguageClient | undefined {
    return this.life.active?.client;
  }

  /** Start the program, in place of one that runs. */
  start(program: string): Promise<void> {
    this.program = program;
    return this.life.start((ended) => this.process(program, ended));
  }

  stop(): Promise<void> {
    return this.life.stop();
  }

  /** Figures of the engine; none without an engine that is ready. */
  async figures(): Promise<Figures> {
    try {
      const found = await this.active?.sendRequest<{ figures: Figures }>(REPORT, {});
      return found?.figures ?? {};
    } catch {
      return {};
    }
  }

  dispose(): void {
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private process(program: string, ended: () => void): Process {
    const given = settings();
    const options: LanguageClientOptions = {
      documentSelector: [
        ...(SELECTOR as { scheme: string }[]),
        { notebook: "*" },
      ],
      outputChannel: this.output,
      initializationOptions: given,
      middleware: {
        // The provider of this extension streams; the built-in one would answer a second time.
        provideInlineCompletionItems: () => [],
        workspace: { configuration: () => [settings()] },
      },
      // How often and when is decided here.
      connectionOptions: { maxRestartCount: 0 },
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: () => ({ action: CloseAction.DoNotRestart, handled: true }),
      },
      initializationFailedHandler: () => false,
    };
    const run = { command: program, transport: TransportKind.stdio }; // which adds --stdio
    const client = new QuietClient(SECTION, "completion-ls", { run, debug: run }, options);
    client.registerFeature({
      fillClientCapabilities: (capabilities) => {
        capabilities.experimental = {
          completionLs: { engineState: true, wholeSettings: true, suggestionUse: true },
        };
      },
      // The provider says what is accepted. A command of the server's would be one of VS Code's, of which
      // there can be one only: another server could not start before this one is gone for good.
      preInitialize: (capabilities) => {
        capabilities.executeCommandProvider = undefined;
      },
      initialize: () => undefined,
      getState: () => ({ kind: "static" }),
      clear: () => undefined,
    });
    client.onNotification(STATE_CHANGED, (state: EngineState) => this.watcher.state(state));
    client.onDidChangeState(({ newState }) => {
      if (newState === State.Stopped) {
        ended();
      }
    });
    const ready = client.start();
    const stop = async (): Promise<void> => {
      try {
        await client.dispose(2000);
      } catch {
        // One that has not answered yet is killed after a while, unless it answers first.
        ready.then(() => client.dispose(2000)).catch(() => undefined);
      }
    };
    return { client, given, ready, stop };
  }

  private answers(one: Process): void {
    this.listening = this.watcher.started(one.client);
    if (JSON.stringify(settings()) !== JSON.stringify(one.given)) {
      this.tellSettings(); // they were changed meanwhile
    }
    this.tellShown(vscode.window.activeTextEditor);
  }

  private tellSettings(): void {
    this.tell("workspace/didChangeConfiguration", { settings: { [SECTION]: settings() } });
  }

  /** Which document the user looks at, so that its prompt is there before the first key. */
  private tellShown(editor: vscode.TextEditor | undefined): void {
    const client = this.active;
    if (client && editor && vscode.languages.match(SELECTOR, editor.document)) {
      this.tell(SHOWN, {
        textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
        position: client.code2ProtocolConverter.asPosition(editor.selection.active),
      });
    }
  }

  /** Without an answer; a server that has just gone need not hear it. */
  private tell(method: string, params: object): void {
    this.active?.sendNotification(method, params).catch(() => undefined);
  }
}

function settings(): Chosen {
  const all = vscode.workspace.getConfiguration(SECTION);
  return chosen(KEYS, RESTRICTED, (key) => all.inspect(key));
}
