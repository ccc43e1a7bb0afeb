/** Ghost text that grows while it is streamed.
 *
 * VS Code asks a provider once and takes no updates. A provider that is registered anew counts as
 * another one, so a trigger behind that has VS Code ask again and the text only ever grows; the
 * argument that this needs exists from 1.106 on. Before, hiding and triggering does it: lower lines
 * may blink for a frame, and VS Code takes what has grown for asked by hand, so that whoever asks for
 * alternatives to it must press Escape first. Neither is documented: the end-to-end tests hold them.
 */

import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { type Asked, type Item, type Partial, Session, samePlace } from "./session";
import { type Action, idOf, size, takenPart } from "./taken";

const STREAM = "completionLs/streamInlineCompletion";
const PARTIAL = "completionLs/partialInlineCompletion";
const USED = "completionLs/didUseSuggestion";
const STREAMING = "completion-ls.streaming";
export const DISMISS = "completion-ls.dismiss";
const ACCEPTED = "completion-ls.accepted";

/** After so long nobody asks any more at the place where the cursor has gone. */
const LEFT_MS = 300;

export const SELECTOR: vscode.DocumentSelector = [
  { scheme: "file" },
  { scheme: "untitled" },
  { scheme: "vscode-notebook-cell" },
];

/** What VS Code was given last: it goes on with that by itself while the user types along. */
interface Given {
  readonly asked: Asked;
  readonly items: readonly Item[];
}

interface Live {
  readonly session: Session;
  readonly cancel: vscode.CancellationTokenSource;
}

export class Provider implements vscode.Disposable {
  private live: Live | undefined;
  private given: Given | undefined;
  private count = 0;
  private registration: vscode.Disposable | undefined;
  private readonly disposables: vscode.Disposable[] = [];
  private readonly growsByRegistering: boolean;
  /** A trigger is under way that is not the user's, and looks as if it were. */
  private isTriggering = false;

  constructor(
    private readonly extensionId: string,
    /** The client of a server that runs, if there is one. */
    private readonly client: () => LanguageClient | undefined,
    private readonly isOff: (document: vscode.TextDocument) => boolean,
    /** A suggestion has come to its end. */
    private readonly finished: () => void,
  ) {
    const [major, minor] = vscode.version.split(".").map(Number);
    this.growsByRegistering = (major ?? 1) > 1 || (minor ?? 0) >= 106;
    this.register();
    this.disposables.push(
      vscode.commands.registerCommand(DISMISS, () => this.dismiss()),
      vscode.commands.registerCommand(ACCEPTED, (id: string, item?: string) =>
        this.accepted(id, item),
      ),
      vscode.workspace.onDidChangeTextDocument((event) => this.lookWhetherTaken(event)),
      vscode.window.onDidChangeTextEditorSelection(() => this.lookWhetherLeft()),
      vscode.window.onDidChangeActiveTextEditor(() => this.lookWhetherLeft()),
    );
  }

  /** Hear of the parts that a server sends. */
  listen(client: LanguageClient): vscode.Disposable {
    return client.onNotification(PARTIAL, (part: Partial) => this.grow(part));
  }

  /** The server is gone. */
  reset(): void {
    this.live?.session.end();
    this.end();
  }

  dispose(): void {
    this.end();
    this.registration?.dispose();
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private register(): void {
    const before = this.registration;
    this.registration = vscode.languages.registerInlineCompletionItemProvider(SELECTOR, {
      provideInlineCompletionItems: (document, position, context, token) =>
        this.provide(document, position, context, token),
    });
    before?.dispose();
  }

  private async provide(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionList | undefined> {
    const client = this.client();
    const { Automatic, Invoke } = vscode.InlineCompletionTriggerKind;
    const byHand = context.triggerKind === Invoke && !this.isTriggering;
    const asked: Asked = {
      uri: document.uri.toString(),
      version: document.version,
      place: position,
      selected: context.selectedCompletionInfo?.text ?? "",
      byHand,
    };
    const live = this.live?.session.serves(asked) ? this.live.session : undefined;
    if (!client || (this.isOff(document) && !byHand && !live?.asked.byHand)) {
      return undefined;
    }
    const kind = { ...context, triggerKind: byHand ? Invoke : Automatic };
    const session = live ?? this.begin(client, document, position, kind, asked);
    const cancelled = token.onCancellationRequested(() => this.leave(session));
    await session.hasSomething();
    cancelled.dispose();
    if (token.isCancellationRequested) {
      return undefined;
    }
    if (session.items.length > 0) {
      this.given = { asked, items: session.items };
    }
    return new vscode.InlineCompletionList(
      session.items.map((item) => shown(item, position, session.id)),
    );
  }

  /** Ask the server. An older request is not cancelled: the server sees by itself whether what was typed
   * since agrees with the suggestion, and then goes on with it. */
  private begin(
    client: LanguageClient,
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    asked: Asked,
  ): Session {
    const session = new Session(`${++this.count}`, asked);
    const cancel = new vscode.CancellationTokenSource();
    this.live = { session, cancel };
    this.setStreaming(true);
    const params = client.code2ProtocolConverter.asInlineCompletionParams(
      document,
      position,
      context,
    );
    client
      .sendRequest<{ items?: Item[] } | null>(STREAM, { ...params, streamId: session.id }, cancel.token)
      .then(
        (list) => session.end(list?.items ?? []),
        () => session.end(), // cancelled, or the server went: what is shown may stay
      )
      .then((grew) => {
        if (this.live?.session === session) {
          this.setStreaming(false);
          if (grew) {
            this.refresh(session);
          }
        }
        this.finished();
      });
    return session;
  }

  private grow(part: Partial): void {
    const session = this.live?.session;
    if (session) {
      const waits = session.items.length === 0;
      if (session.grow(part) && !waits) {
        this.refresh(session);
      }
    }
  }

  /** Have VS Code ask again for what it shows already. */
  private refresh(session: Session): void {
    const editor = vscode.window.activeTextEditor;
    if (session.dismissed || !editor || !isAt(session.asked, editor)) {
      return;
    }
    if (this.growsByRegistering) {
      this.register();
      void vscode.commands.executeCommand("editor.action.inlineSuggest.trigger", {
        providerId: this.extensionId,
        explicit: false,
      });
    } else {
      void vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
      this.isTriggering = true;
      const over = () => (this.isTriggering = false);
      vscode.commands.executeCommand("editor.action.inlineSuggest.trigger").then(over, over);
    }
  }

  /** VS Code waits no longer. Without any text yet it will show nothing of this. */
  private leave(session: Session): void {
    this.lookWhetherLeft(); // first: what has ended is not looked at
    if (session.items.length === 0 && !session.ended) {
      session.end();
    }
  }

  /** Stop the engine where the cursor has gone and nobody asks there. A user who types along asks again in
   * a moment, and the server goes on with what agrees, although the older request is cancelled. */
  private lookWhetherLeft(): void {
    const live = this.live;
    if (!live || live.session.ended) {
      return;
    }
    setTimeout(() => {
      const editor = vscode.window.activeTextEditor;
      if (this.live === live && !(editor && isAt(live.session.asked, editor))) {
        this.end();
      }
    }, LEFT_MS);
  }

  /** Escape: nothing more of this suggestion is shown. It stays the live one, to answer with nothing what
   * VS Code was about to ask when the key came. */
  private async dismiss(): Promise<void> {
    const [item] = this.live?.session.items ?? [];
    if (item) {
      this.tellUse(idOf(item), "reject");
    }
    this.live?.session.dismiss();
    this.stop();
    await vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
  }

  private accepted(id: string, item: string | undefined): void {
    this.tellUse(item, "accept");
    this.given = undefined;
    if (this.live?.session.id === id) {
      this.live.session.dismiss();
      this.end();
    }
  }

  /** A word or a line may have been accepted, by whatever key or button. */
  private lookWhetherTaken(event: vscode.TextDocumentChangeEvent): void {
    const [change] = event.contentChanges;
    const given = this.given;
    if (!given || !change || event.contentChanges.length > 1 || event.reason !== undefined) {
      return;
    }
    if (event.document.uri.toString() !== given.asked.uri) {
      return;
    }
    for (const item of given.items) {
      const from = item.range?.start ?? given.asked.place;
      const start = new vscode.Position(from.line, from.character);
      if (change.range.start.isBefore(start)) {
        continue;
      }
      const typed = event.document.getText(new vscode.Range(start, change.range.start));
      const part = takenPart(item, typed, change.text, given.asked.selected);
      if (part) {
        // The client of the server hears of the change behind us, and that must go first.
        setTimeout(() => this.tellUse(idOf(item), part, size(change.text)), 0);
        return;
      }
    }
  }

  private tellUse(suggestion: string | undefined, action: Action, characters?: number): void {
    if (suggestion !== undefined) {
      const said = { suggestion, action, ...(characters !== undefined && { characters }) };
      this.client()?.sendNotification(USED, said).catch(() => undefined);
    }
  }

  private end(): void {
    this.stop();
    this.live = undefined;
  }

  private stop(): void {
    this.live?.cancel.cancel();
    this.setStreaming(false);
  }

  private setStreaming(on: boolean): void {
    void vscode.commands.executeCommand("setContext", STREAMING, on);
  }
}

function shown(item: Item, position: vscode.Position, id: string): vscode.InlineCompletionItem {
  const { start, end } = item.range ?? { start: position, end: position };
  const range = new vscode.Range(start.line, start.character, end.line, end.character);
  return new vscode.InlineCompletionItem(item.insertText, range, {
    command: ACCEPTED,
    title: "",
    arguments: [id, idOf(item)],
  });
}

function isAt(asked: Asked, editor: vscode.TextEditor): boolean {
  const { document, selection } = editor;
  return samePlace(asked, {
    uri: document.uri.toString(),
    version: document.version,
    place: selection.active,
    selected: asked.selected,
    byHand: asked.byHand,
  });
}
