/** The item in the status bar, and its menu. */

import * as vscode from "vscode";
import { names } from "./chosen";
import { type EngineState, type Figures, label, tooltip } from "./figures";

const SECTION = "completion-ls";
export const MENU = "completion-ls.menu";
const LANGUAGES = "server.disabled_languages";
/** Figures are asked for at most so often, and so long after a suggestion: it is counted by then. */
const EVERY_MS = 2000;
const SETTLED_MS = 300;

/** Why nothing is offered in a document by itself; empty where something is. */
export function offReason(document: vscode.TextDocument | undefined): string {
  const all = vscode.workspace.getConfiguration(SECTION, document);
  if (!isEnabled(all)) {
    return "in this workspace";
  }
  const language = document?.languageId ?? "";
  return names(all.get(LANGUAGES)).includes(language) ? `for ${language}` : "";
}

export class StatusBar implements vscode.Disposable {
  private readonly item: vscode.StatusBarItem;
  private readonly disposables: vscode.Disposable[] = [];
  private state: EngineState | undefined;
  private figures: Figures = {};
  private askedAt = 0;
  private asking: NodeJS.Timeout | undefined;

  constructor(private readonly ask: () => Promise<Figures>) {
    this.item = vscode.window.createStatusBarItem(
      "status",
      vscode.StatusBarAlignment.Right,
      100,
    );
    this.item.name = "completion-ls";
    this.item.command = MENU;
    this.disposables.push(
      this.item,
      vscode.window.onDidChangeActiveTextEditor(() => this.show()),
      vscode.workspace.onDidChangeConfiguration(() => this.show()),
    );
    this.show();
    this.item.show();
  }

  change(state: EngineState | undefined): void {
    this.state = state;
    if (state?.state !== "ready") {
      this.figures = {}; // they were another engine's
    }
    this.show();
  }

  /** A suggestion was given: the figures are others now. */
  refresh(): void {
    const wait = Math.max(this.askedAt + EVERY_MS - Date.now(), SETTLED_MS);
    this.asking ??= setTimeout(async () => {
      this.asking = undefined;
      this.askedAt = Date.now();
      this.figures = await this.ask();
      this.show();
    }, wait);
  }

  dispose(): void {
    clearTimeout(this.asking);
    vscode.Disposable.from(...this.disposables).dispose();
  }

  private show(): void {
    const off = offReason(vscode.window.activeTextEditor?.document);
    this.item.text = label(this.state, off !== "");
    this.item.tooltip = new vscode.MarkdownString(tooltip(this.state, this.figures, off));
    this.item.backgroundColor =
      this.state?.state === "failed" && !off
        ? new vscode.ThemeColor("statusBarItem.errorBackground")
        : undefined;
  }
}

/** What the menu offers, by the commands that the extension has. */
export async function showMenu(): Promise<void> {
  const document = vscode.window.activeTextEditor?.document;
  const all = vscode.workspace.getConfiguration(SECTION, document);
  const enabled = isEnabled(all);
  const language = document?.languageId;
  const languages = names(all.get(LANGUAGES));
  const isOff = language !== undefined && languages.includes(language);
  const choices: (vscode.QuickPickItem & { readonly run: () => Thenable<unknown> })[] = [];
  if (language) {
    choices.push({
      label: `$(${isOff ? "check" : "circle-slash"}) Turn ${isOff ? "on" : "off"} for ${language}`,
      run: () =>
        all.update(
          LANGUAGES,
          isOff ? languages.filter((one) => one !== language) : [...languages, language],
          // The user's own do not count where the workspace has some.
          all.inspect(LANGUAGES)?.workspaceValue === undefined
            ? vscode.ConfigurationTarget.Global
            : vscode.ConfigurationTarget.Workspace,
        ),
    });
  }
  const here = vscode.workspace.workspaceFolders ? "in this workspace" : "everywhere";
  choices.push(
    {
      label: `$(${enabled ? "circle-slash" : "check"}) Turn ${enabled ? "off" : "on"} ${here}`,
      run: () => setEnabled(all, !enabled),
    },
    command("$(debug-restart) Restart the server", "completion-ls.restart"),
    command("$(pulse) Doctor: can the engine run here?", "completion-ls.doctor"),
    command("$(graph) Status of the engine", "completion-ls.status"),
    command("$(output) Log", "completion-ls.log"),
    {
      label: "$(gear) Settings",
      run: () => vscode.commands.executeCommand("workbench.action.openSettings", `${SECTION}.`),
    },
  );
  const chosen = await vscode.window.showQuickPick(choices, { title: "completion-ls" });
  await chosen?.run();
}

function isEnabled(all: vscode.WorkspaceConfiguration): boolean {
  return all.get<unknown>("enabled") !== false;
}

/** Where nothing that counts more stands against it. */
function setEnabled(all: vscode.WorkspaceConfiguration, enabled: boolean): Thenable<void> {
  const there = all.inspect("enabled");
  // One for the language goes before any that is not, wherever it is written.
  const ofLanguage = [
    there?.globalLanguageValue,
    there?.workspaceLanguageValue,
    there?.workspaceFolderLanguageValue,
  ].some((one) => one !== undefined);
  const ofFolder = ofLanguage ? there?.workspaceFolderLanguageValue : there?.workspaceFolderValue;
  const { Global, Workspace, WorkspaceFolder } = vscode.ConfigurationTarget;
  const here = ofFolder === undefined ? Workspace : WorkspaceFolder;
  const target = vscode.workspace.workspaceFolders ? here : Global;
  return all.update("enabled", enabled, target, ofLanguage);
}

function command(label: string, name: string) {
  return { label, run: () => vscode.commands.executeCommand(name) };
}
