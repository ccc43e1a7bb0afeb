/** The server's life: started, started again when it ended, stopped. */

import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  type LanguageClientOptions,
  TransportKind,
} from "vscode-languageclient/node";
import { Backoff } from "./backoff";
import { type Chosen, chosen } from "./chosen";
import type { EngineState, Figures } from "./figures";
import { SELECTOR } from "./provider";
import { KEYS, RESTRICTED } from "./settings.generated";

const SECTION = "completion-ls";
const STATE_CHANGED = "completionLs/didChangeEngineState";
const REPORT = "completionLs/engineReport";
const SHOWN = "completionLs/didShowDocument";

export interface Watcher {
  /** A server runs; what it returns is disposed when that ends. */
  started(client: LanguageClient): vscode.Disposable;
  stopped(): void;
  state(state: EngineState): void;
}

export class Server implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private running: vscode.Disposable | undefined;
  private program: string | undefined;
  private startedAt = 0;
  private restarting: NodeJS.Timeout | undefined;
  private readonly backoff = new Backoff();
  private readonly disposables: vscode.Disposable[] = [];
  /** Starts and stops happen one after the other. */
  private queue: Promise<void> = Promise.resolve();

  constructor(
    private readonly output: vscode.LogOutputChannel,
    private readonly watcher: Watcher,
  ) {
    this.disposables.push(
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(SECTION)) {
          void this.tellSettings();
        }
      }),
      vscode.workspace.onDidGrantWorkspaceTrust(() => void this.tellSettings()),
      vscode.window.onDidChangeActiveTextEditor((editor) => void this.tellShown(editor)),
    );
  }

  /** The client of a server that answers. */
  get active(): LanguageClient | undefined {
    return this.running && this.client;
  }

  /** Start the program, in place of one that runs. */
  start(program: string): Promise<void> {
    this.program = program;
    this.backoff.reset();
    return this.inTurn(async () => {
      await this.end();
      await this.begin();
    });
  }

  stop(): Promise<void> {
    this.program = undefined;
    return this.inTurn(() => this.end());
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

  private inTurn(work: () => Promise<void>): Promise<void> {
    this.queue = this.queue.then(work, work);
    return this.queue;
  }

  private async begin(): Promise<void> {
    if (!this.program) {
      return;
    }
    const options: LanguageClientOptions = {
      documentSelector: [
        ...(SELECTOR as { scheme: string }[]),
        { notebook: "*" },
      ],
      outputChannel: this.output,
      initializationOptions: settings(),
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
    const run = { command: this.program, args: ["--stdio"], transport: TransportKind.stdio };
    const client = new LanguageClient(SECTION, "completion-ls", { run, debug: run }, options);
    client.registerFeature({
      fillClientCapabilities: (capabilities) => {
        capabilities.experimental = { completionLs: { engineState: true } };
      },
      initialize: () => undefined,
      getState: () => ({ kind: "static" }),
      clear: () => undefined,
    });
    client.onNotification(STATE_CHANGED, (state: EngineState) => this.watcher.state(state));
    this.client = client;
    this.startedAt = Date.now();
    try {
      await client.start();
    } catch (error) {
      this.lost(client, `The server ${this.program} could not be started: ${String(error)}`);
      return;
    }
    if (this.client !== client) {
      return;
    }
    this.running = vscode.Disposable.from(
      this.watcher.started(client),
      client.onDidChangeState(({ newState }) => {
        // 1: stopped.
        if (newState === 1 && this.client === client) {
          this.lost(client, "The server ended.");
        }
      }),
    );
    void this.tellShown(vscode.window.activeTextEditor);
  }

  /** Start another one in place of a server that ended by itself. */
  private lost(client: LanguageClient, why: string): void {
    this.release();
    this.client = undefined;
    void client.dispose().catch(() => undefined);
    const wait = this.backoff.after(Date.now() - this.startedAt);
    this.output.warn(`${why} It is started again in ${wait / 1000} s.`);
    this.watcher.state({ state: "failed", text: why, percentage: 0 });
    this.restarting = setTimeout(() => void this.inTurn(() => this.begin()), wait);
  }

  private async end(): Promise<void> {
    clearTimeout(this.restarting);
    const client = this.client;
    this.client = undefined;
    this.release();
    try {
      await client?.dispose(2000);
    } catch {
      // It is gone already.
    }
  }

  private release(): void {
    if (this.running) {
      this.running.dispose();
      this.running = undefined;
      this.watcher.stopped();
    }
  }

  private async tellSettings(): Promise<void> {
    await this.active?.sendNotification("workspace/didChangeConfiguration", {
      settings: { [SECTION]: settings() },
    });
  }

  /** Which document the user looks at, so that its prompt is there before the first key. */
  private async tellShown(editor: vscode.TextEditor | undefined): Promise<void> {
    const client = this.active;
    if (client && editor && vscode.languages.match(SELECTOR, editor.document)) {
      await client.sendNotification(SHOWN, {
        textDocument: client.code2ProtocolConverter.asTextDocumentIdentifier(editor.document),
        position: client.code2ProtocolConverter.asPosition(editor.selection.active),
      });
    }
  }
}

function settings(): Chosen {
  const all = vscode.workspace.getConfiguration(SECTION);
  return chosen(KEYS, RESTRICTED, vscode.workspace.isTrusted, (key) => all.inspect(key));
}
