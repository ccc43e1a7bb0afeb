/** Inline completion from a model on this machine: starts the server and shows what it suggests. */

import { execFile } from "node:child_process";
import * as vscode from "vscode";
import { findProgram, install } from "./program";
import { Provider } from "./provider";
import { Server } from "./server";
import { MENU, offReason, showMenu, StatusBar } from "./status";

const SECTION = "completion-ls";

let server: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("completion-ls", { log: true });
  const status = new StatusBar(async () => (await server?.figures()) ?? {});
  const provider = new Provider(
    context.extension.id,
    () => server?.active,
    (document) => offReason(document) !== "",
    () => status.refresh(),
  );
  server = new Server(output, {
    started: (client) => provider.listen(client),
    stopped: () => provider.reset(),
    state: (state) => status.change(state),
  });
  const found = () => findProgram(configured("program", ""), context.globalStorageUri);

  let starts = 0;
  const start = async (): Promise<void> => {
    const turn = ++starts;
    const program = await found();
    if (turn !== starts) {
      return; // a later one looks for the program as it is named now
    }
    if (program) {
      await server?.start(program);
      return;
    }
    await server?.stop();
    status.change({
      state: "failed",
      text: "completion-ls is not installed here; the menu of this item restarts when it is.",
      percentage: 0,
    });
    await offerInstallation();
  };

  let offered: Promise<void> | undefined;
  const offerInstallation = (): Promise<void> => {
    offered ??= offer().finally(() => (offered = undefined));
    return offered;
  };

  const offer = async (): Promise<void> => {
    const yes = "Install into a private environment";
    const name = "Name the program";
    const answer = await vscode.window.showWarningMessage(
      "The program completion-ls was not found: neither in the active Python environment nor in the PATH.",
      yes,
      name,
    );
    if (answer === name) {
      // Of a remote window the user's own settings do not have those of the machine.
      const which = vscode.env.remoteName ? "openRemoteSettings" : "openSettings";
      await vscode.commands.executeCommand(`workbench.action.${which}`, {
        query: "completion-ls.program",
      });
    } else if (answer === yes) {
      try {
        await vscode.window.withProgress(
          { location: vscode.ProgressLocation.Notification, title: "Installing completion-ls" },
          () => install(configured("package", "completion-ls"), context.globalStorageUri, output),
        );
        void start();
      } catch (error) {
        void vscode.window.showErrorMessage((error as Error).message);
        output.show(true);
      }
    }
  };

  /** Run a command of the program, and show what it prints. */
  const print = async (...args: string[]): Promise<void> => {
    const program = await found();
    if (!program) {
      await offerInstallation();
      return;
    }
    output.show(true);
    output.appendLine(`> ${program} ${args.join(" ")}`);
    await new Promise<void>((resolve) => {
      execFile(program, args, { env: { ...process.env, COLUMNS: "120" } }, (error, stdout, stderr) => {
        // An exit status has been explained by what was printed.
        const why = typeof error?.code === "string" ? `${error.message}\n` : "";
        output.append(stdout + stderr + why);
        resolve();
      });
    });
  };

  context.subscriptions.push(
    output,
    status,
    provider,
    server,
    vscode.commands.registerCommand(MENU, showMenu),
    vscode.commands.registerCommand("completion-ls.restart", start),
    vscode.commands.registerCommand("completion-ls.doctor", () => print("doctor")),
    vscode.commands.registerCommand("completion-ls.status", () => print("status")),
    vscode.commands.registerCommand("completion-ls.init", () => print("init")),
    vscode.commands.registerCommand("completion-ls.log", () => output.show()),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("completion-ls.program")) {
        void start();
      }
    }),
    // More settings count, and the Python environment.
    vscode.workspace.onDidGrantWorkspaceTrust(start),
  );
  // Not waited for: the editor need not wait for a Python environment to be found.
  void start();
}

export async function deactivate(): Promise<void> {
  const last = server;
  server = undefined; // a start that still looks for the program finds none
  await last?.stop();
}

function configured(key: string, otherwise: string): string {
  return vscode.workspace.getConfiguration(SECTION).get<string>(key, otherwise);
}
